"""Ops made with torch.library, every way that it offers: captured as nodes, lowered by op or by overload."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import Tensor, nn
from torch.library import Library, impl

import ir
from ir.testing import check_op

TARGETS = ("onnx", "nnef", "eager")
X = torch.rand(4, 3)
ROWS = ({0: "n"},)

foo = Library("foo", "DEF")
foo.define("add(Tensor self, Tensor other) -> Tensor")
foo.define("add.scalar(Tensor self, float other, *, float alpha=1.0) -> Tensor")
foo.define("composite(Tensor x) -> Tensor")
foo.define("everywhere(Tensor x, float by) -> Tensor")


@impl(foo, "add", "CPU")
def _(self, other):
    return torch.from_numpy(self.numpy() + other.numpy())


@impl(foo, "add.scalar", "CPU")
def _(self, other, *, alpha=1.0):
    return torch.from_numpy(self.numpy() + other * alpha)


@impl(foo, "add", "CUDA")
def _(self, other):
    raise AssertionError("no CUDA tensors in this test")


@impl(foo, "add", "Meta")
def _(self, other):
    return torch.empty_like(self)


@impl(foo, "add.scalar", "Meta")
def _(self, other, *, alpha=1.0):
    return torch.empty_like(self)


foo.impl("composite", lambda x: torch.ops.foo.add(x, x).sin(), "CompositeImplicitAutograd")
foo.impl("everywhere", lambda x, by: torch.cos(x) * by, "CompositeExplicitAutograd")


class Model(nn.Module):
    def forward(self, x):
        return torch.ops.foo.add(torch.ops.foo.add(x, x), 2.5, alpha=2.0)


@pytest.fixture(autouse=True)
def _no_bodies():
    from ir.importer.bodies import BODIES

    before = dict(BODIES)
    yield
    BODIES.clear()
    BODIES.update(before)


def test_overloads_are_nodes_of_one_op():
    graph = ir.capture(Model(), X, dynamic_shapes=ROWS)
    assert [(n.op, n.overload) for n in graph.nodes] == [("foo::add", "foo::add"), ("foo::add", "foo::add.scalar")]
    assert graph.nodes[1].args["alpha"] == 2.0 and str(graph.outputs[0].type) == "f32[n, 3]"


def test_eager_runs_the_kernels():
    program = ir.export(Model(), X, target="eager", dynamic_shapes=ROWS, verify=True)
    program.verify((torch.rand(7, 3),))


def test_a_handler_for_all_overloads_and_for_one():
    def add(h, self, other, alpha=1.0):
        return h.emit("Add", self, other if h.is_value(other) else other * alpha)

    def scalar(h, self, other, alpha):
        return h.emit("Sub", self, -other * alpha)

    def unnamed(h, self, other):
        return h.emit("Sum", self, other)

    def ops(**handlers):
        named = {k.replace("__", "::").replace("_", "."): f for k, f in handlers.items()}
        program = ir.export(Model(), X, handlers=named, dynamic_shapes=ROWS, verify=True)
        return [n.op_type for n in program.artifact.graph]

    assert ops(foo__add=add) == ["Add", "Add"]
    assert ops(foo__add=add, foo__add_scalar=scalar) == ["Add", "Sub"]
    assert ops(foo__add=add, foo__add_default=unnamed) == ["Sum", "Add"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_body_for_all_overloads_and_for_one(target):
    ir.op("foo::add").body(lambda self, other: self + other)

    @ir.op("foo::add.scalar").body
    def _(self, other, *, alpha):
        return self + other * alpha

    program = ir.export(Model(), X, target=target, dynamic_shapes=ROWS, verify=True)
    program.verify((torch.rand(7, 3),))


@pytest.mark.parametrize("target", TARGETS)
def test_a_body_for_the_unnamed_overload(target):
    ir.op("foo::add.default").body(lambda self, other: self + other)
    ir.op("foo::add.scalar").body(lambda self, other, *, alpha: self + other * alpha)
    ir.export(Model(), X, target=target, dynamic_shapes=ROWS, verify=True)
    ir.op("foo::add.default").body(lambda self, other: self - other)
    report = check_op(torch.ops.foo.add.default, [(X, X)], targets=[], opcheck=False, raise_exception=False)
    assert [c.what for c in report.checks if not c.ok] == ["body"]


def test_what_is_missing_is_said_with_the_overloads_own_arguments():
    with pytest.raises(ir.UnsupportedOpsError) as error:
        ir.export(Model(), X, target="nnef")
    plain, scalar = error.value.missing
    assert '@ir.op("foo::add").body\ndef _(self, other): ...' in plain.skeleton
    assert '@ir.op("foo::add.scalar").body\ndef _(self, other, *, alpha): ...' in scalar.skeleton
    assert 'def _(h, self, other, alpha): return h.emit("...", self)' in scalar.skeleton
    assert "in the words of 'nnef' alone" in scalar.skeleton


foo.define("push_(Tensor(a!) self, int n) -> Tensor(a!)")
foo.define("both_(Tensor(a!) x, Tensor(b!) y) -> (Tensor(a!), Tensor(b!))")
impl(foo, "push_", "CPU")(lambda self, n: self.add_(n))
impl(foo, "push_", "Meta")(lambda self, n: self)
impl(foo, "both_", "CompositeExplicitAutograd")(lambda x, y: (x.add_(1), y.add_(2)))


class Pushes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        y = x.clone()
        torch.ops.foo.push_(y[0], 3)
        doubled = y * 2
        return torch.ops.foo.push_(y, 5), y, doubled, torch.ops.foo.push_(self.count, 1) + x


@pytest.mark.parametrize("target", TARGETS)
def test_an_op_that_returns_what_it_writes_to(target):
    """As torch's own in-place ops do; its handler and its body give the new contents, once."""
    graph = ir.check(ir.capture(Pushes(), X, dynamic_shapes=ROWS))
    assert [len(n.outputs) for n in graph.nodes if n.op == "foo::push_"] == [1, 1, 1]
    if target == "eager":
        ir.export(Pushes(), X, target=target, dynamic_shapes=ROWS, verify=True)
    ir.op("foo::push_").body(lambda self, n: self.add_(n))
    program = ir.export(Pushes(), X, target=target, dynamic_shapes=ROWS, verify=True)
    if target != "eager":
        program.verify(torch.rand(7, 3))
    handlers = {"foo::push_": lambda h, self, n: h.emit("Add", self, n)}
    assert not ir.export(Pushes(), X, handlers=handlers, verify=True).artifact.functions


@pytest.mark.parametrize("target", TARGETS)
def test_an_op_that_returns_both_of_what_it_writes_to(target):
    """torch's own functionalisation refuses it."""
    graph = ir.check(ir.capture(lambda x: torch.ops.foo.both_(x.clone(), x * 2), X))
    assert [len(n.outputs) for n in graph.nodes if n.op == "foo::both_"] == [2]
    ir.export(graph, target=target, verify=True)


@torch.library.custom_op("foo::opaque", mutates_args=("state",))
def opaque(xs: list[Tensor], state: Tensor, lambda_: float = 1.0) -> Tensor:
    state += torch.from_numpy(xs[0].numpy() * lambda_)
    return torch.from_numpy(xs[1].numpy() + 1)


opaque.register_fake(lambda xs, state, lambda_=1.0: torch.empty_like(xs[1]))


def test_what_is_printed_can_be_filled_in():
    """Lists among the operands, an argument that ends in an underscore, writes; a body with too few results is told."""

    def fn(x):
        state = torch.zeros_like(x)
        return opaque([x, x], state, 3.0), state

    for target, add, times in (("onnx", "Add", "Mul"), ("nnef", "add", "mul")):
        with pytest.raises(ir.UnsupportedOpsError) as error:
            ir.export(fn, X, target=target)
        handler = error.value.missing[0].skeleton.partition("else a handler")[2].partition("\n")[2]
        written = f'[h.emit("{add}", xs[1], 1.0), h.emit("{add}", state, h.emit("{times}", xs[0], lambda_))]'
        assert 'h.emit("...", *xs, state)' in handler
        filled = handler.replace('h.emit("...", *xs, state)', written)
        exec(filled, {"ir": ir})
        ir.export(fn, X, target=target, verify=True)
        ir.registry.registry(target).remove("foo::opaque")
    body = error.value.missing[0].skeleton.partition("# else")[0]
    ir.op("foo::opaque").body(lambda xs, state, lambda_: None)
    with pytest.raises(ir.CaptureError, match="gives 1 tensors, the op has 2, what it writes to among them"):
        ir.export(fn, X)
    exec(body.replace("...", "state.add_(xs[0] * lambda_); return xs[1] + 1"), {"ir": ir})
    for target in TARGETS:
        ir.export(fn, X, target=target, verify=True)


@pytest.mark.parametrize("target", TARGETS)
def test_composite_kernels_are_bodies(target):
    ir.op("foo::add").body(lambda self, other: self + other)
    fn = lambda x: torch.ops.foo.everywhere(torch.ops.foo.composite(x), 3.0)  # noqa: E731
    graph = ir.capture(fn, X)
    assert [n.op for n in graph.nodes] == ["foo::composite", "foo::everywhere"]
    ir.export(graph, target=target, verify=True)


@torch.library.custom_op("foo::scaled", mutates_args=())
def scaled(x: Tensor, n: int) -> Tensor:
    return x * n


@scaled.register_fake
def _(x, n):
    return torch.empty_like(x)


@torch.library.triton_op("foo::triton", mutates_args={})
def triton(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y


@torch.library.custom_op("foo::accumulate", mutates_args={"state"})
def accumulate(state: Tensor, x: Tensor) -> None:
    state.add_(x)


@pytest.mark.parametrize("target", TARGETS)
def test_the_function_of_custom_op_and_triton_op_is_a_body(target):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(3))

        def forward(self, x):
            accumulate(self.state, x.sum(0))
            return triton(scaled(x, x.shape[0]), x) + self.state

    graph = ir.capture(Model(), X, dynamic_shapes=ROWS)
    assert [n.op for n in graph.nodes if n.op.startswith("foo")] == ["foo::accumulate", "foo::scaled", "foo::triton"]
    ir.export(graph, target=target, verify=True)


def test_impl_for_an_existing_operator():
    """A kernel of aten's own operator changes what torch computes, not what the graph says."""
    library = Library("aten", "IMPL")
    fn = lambda x: torch.erfc(x)  # noqa: E731
    called = []

    def kernel(x):
        called.append(tuple(x.shape))
        return 1 - torch.erf(x)

    library.impl("erfc", kernel, "CPU", allow_override=True)
    try:
        graph = ir.capture(fn, X)
        assert [n.op for n in graph.nodes] == ["aten::erfc"] and not called
        for target in TARGETS:
            ir.export(graph, target=target, verify=True)
        assert called == [(4, 3)] * len(called) and len(called) >= len(TARGETS)
    finally:
        library._destroy()


def test_a_meta_kernel_for_an_operator_without_one():
    fn = lambda x: torch.ops.foo.shapeless(x)  # noqa: E731
    foo.define("shapeless(Tensor x) -> Tensor")
    foo.impl("shapeless", lambda x: torch.from_numpy(x.numpy()[::2].copy()), "CPU")
    with pytest.raises(ir.CaptureError, match="shapeless"):
        ir.capture(fn, X)
    foo.impl("shapeless", lambda x: x.new_empty((x.shape[0] + 1) // 2, *x.shape[1:]), "Meta")
    ir.op("foo::shapeless").body(lambda x: x[::2])
    for target in TARGETS:
        ir.export(fn, X, target=target, verify=True)


def test_a_kernel_that_gives_another_number_of_tensors_than_its_fake():
    foo.define("parts(Tensor x) -> Tensor[]")
    foo.impl("parts", lambda x: [x + 1, x + 2], "CPU")
    torch.library.register_fake("foo::parts", lambda x: [torch.empty_like(x)] * 3)
    program = ir.export(lambda x: torch.ops.foo.parts(x), X, target="eager")
    with pytest.raises(ir.RuntimeFailure, match=r"foo::parts .*: the kernel gives 2 tensors, its fake says 3"):
        program(X)


def test_an_op_without_a_fake_is_refused_with_the_lines_that_register_one():
    foo.define("unknown.two(Tensor x, float by) -> (Tensor, Tensor[])")
    foo.impl("unknown.two", lambda x, by: (torch.from_numpy(x.numpy() * by), [x]), "CPU")
    with pytest.raises(ir.CaptureError, match="foo::unknown has no fake") as error:
        ir.capture(lambda x: torch.ops.foo.unknown.two(x, 2.0), X)
    said = str(error.value)
    assert f"{__file__}:" in said and "strict" not in said
    lines = said.partition("before the export:\n")[2]
    body = textwrap.dedent(lines).replace("[torch.empty_like(x), ...]", "[torch.empty_like(x)]")
    exec(body, {"torch": torch})
    (node,) = ir.capture(lambda x: torch.ops.foo.unknown.two(x, 2.0), X).nodes
    assert node.overload == "foo::unknown.two"


@torch.library.custom_op("tests::by_size", mutates_args=())
def by_size(x: Tensor, kind: str) -> Tensor:
    n = x.shape[0]
    if kind == "least":
        return x * 2 if n > 3 else x - 1
    if kind == "most":
        return x * 2 if n < 9 else x - 1
    if kind == "one":
        return x * 2 if n == 1 else x - 1
    return x / max(n - 1, 4)


by_size.register_fake(lambda x, kind: torch.empty_like(x))
BRANCHES = [("least", "n > 3", (2,)), ("most", "n < 9", (12,)), ("one", "n != 1", (1,)), ("max", "n - 1 >= 4", (1, 4))]


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize(("kind", "condition", "others"), BRANCHES)
def test_a_function_that_branches_on_a_size_is_held_to_its_side(
    kind: str, condition: str, others: tuple[int, ...], target: str, recwarn: pytest.WarningsRecorder
) -> None:
    program = ir.export(lambda x: by_size(x, kind) + 1, torch.randn(7, 2), target=target, dynamic_shapes=({0: "n"},))
    x = torch.randn(8, 2)
    torch.testing.assert_close(program(x), by_size(x, kind) + 1)
    told = [str(w.message).replace("(", "").replace(")", "") for w in recwarn]
    assert any(condition in t for t in told) == (target != "eager")  # there it is the function itself that runs
    for n in others:
        x = torch.randn(n, 2)
        if target == "eager":
            torch.testing.assert_close(program(x), by_size(x, kind) + 1)
        else:
            with pytest.raises(ir.RefusedError):
                program(x)


@torch.library.custom_op("tests::mean_of", mutates_args=())
def mean_of(x: Tensor) -> tuple[Tensor, float]:
    return x * 2, float(x.mean())


mean_of.register_fake(lambda x: (torch.empty_like(x), 1.5))


def test_a_number_that_an_op_returns_is_that_of_its_fake() -> None:
    told = r"tests::mean_of returns float, in the place of which .* for all inputs; .*\n  at .*test_torch_"
    with pytest.warns(UserWarning, match=told):
        ir.capture(lambda x: torch.mul(*mean_of(x)), torch.randn(3))
