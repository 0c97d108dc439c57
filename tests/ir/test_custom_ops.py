"""Custom ops in plain torch, and what the importer makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ir
from ir.passes.cse import cse
from ir.plugins import warn_of_misspelt
from ir.registry import registries, registry
from ir.testing import check_op


@ir.custom_op("tests::swish")
def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@ir.custom_op("tests::minmax")
def minmax(x: Tensor, dims: list[int], bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    x = x if bias is None else x + bias
    return x.amin(dims), x.amax(dims)


@ir.custom_op("tests::same")
def same(x: Tensor) -> Tensor:
    return x


def test_it_works_in_plain_torch():
    x = torch.randn(3)
    assert torch.equal(swish(x, 2.0), x * torch.sigmoid(2 * x))
    assert torch.equal(torch.ops.tests.swish(x), swish(x))
    low, high = minmax(torch.arange(6.0).reshape(2, 3), [0], bias=torch.ones(3))
    assert low.tolist() == [1, 2, 3] and high.tolist() == [4, 5, 6]
    assert same(x).data_ptr() != x.data_ptr()


def test_gradients_follow_from_the_body():
    assert torch.autograd.gradcheck(lambda x: swish(x, 1.5), torch.randn(3, dtype=torch.double, requires_grad=True))
    x = torch.randn(2, 3, requires_grad=True)
    bias = torch.randn(3, requires_grad=True)
    sum(r.sum() for r in minmax(x, [1], bias)).backward()
    expected = torch.autograd.grad(sum(r.sum() for r in minmax.__wrapped__(x, [1], bias)), (x, bias))
    assert torch.allclose(x.grad, expected[0]) and torch.allclose(bias.grad, expected[1])


def test_torch_compile_and_opcheck():
    compiled = torch.compile(lambda x: swish(x, 2.0) + 1, backend="eager", fullgraph=True)
    x = torch.randn(4)
    assert torch.allclose(compiled(x), swish(x, 2.0) + 1)
    torch.library.opcheck(torch.ops.tests.swish.default, (torch.randn(3, requires_grad=True), 2.0))
    torch.library.opcheck(torch.ops.tests.minmax.default, (torch.randn(2, 3), [0]))


@ir.custom_op("tests::smooth")
def smooth(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, weight)


def test_which_kernel_torch_would_choose_is_no_limit_of_a_body():
    """The fake of a convolution asks if NNPACK would take it, from a batch of 16 on."""
    inputs = torch.randn(5, 1, 8, 8), torch.randn(1, 1, 3, 3)
    graph = ir.capture(lambda x, w: smooth(x, w), inputs, dynamic_shapes=({0: "n"}, None))
    assert graph.context.body(graph.nodes[0]).graph.nodes[-1].op == "aten::conv2d"


def test_a_body_that_branches_on_a_size_asks_for_its_side():
    @torch.library.custom_op("tests::branching", mutates_args=())
    def branching(x: Tensor) -> Tensor:
        return x + 1

    branching.register_fake(lambda x: torch.empty_like(x))
    ir.op("tests::branching").body(lambda x: x + 1 if x.shape[0] > 40 else x - 1)
    graph = ir.capture(lambda x: branching(x), (torch.randn(5),), dynamic_shapes=({0: "n"},))
    with pytest.warns(UserWarning, match=r"branches on dynamic sizes; .*\n  n <= 40  \(.*test_custom_ops"):
        asked, subtracted = graph.context.body(graph.nodes[0]).graph.nodes
    assert (asked.op, str(asked.args["condition"]), subtracted.op) == ("ir::require", "n <= 40", "aten::sub")
    fixed = ir.capture(lambda x: branching(x), (torch.randn(5),))
    assert [n.op for n in fixed.context.body(fixed.nodes[0]).graph.nodes] == ["aten::sub"]


@ir.custom_op("tests::decay")
def decay(x: Tensor, rates: Tensor) -> Tensor:
    def step(state, x):
        state = state * rates + x
        return state, state.clone()

    return torch._higher_order_ops.scan(step, torch.zeros_like(x[0]), x, dim=0)[1]


def test_a_loop_in_a_body_may_have_sizes_among_its_operands():
    """dynamo hands the loop its sizes once it has seen several of them."""
    for size in (3, 4, 5):
        decay(torch.randn(size, size), torch.randn(size))
    graph = ir.capture(lambda x, r: decay(x, r), (torch.randn(6, 3), torch.randn(3)))
    (loop,) = (n for n in graph.context.body(graph.nodes[0]).graph.nodes if n.op == "higher_order::scan")
    operands = [*loop.args["init"], *loop.args["xs"], *loop.args["additional_inputs"]]
    assert len(operands) == len(loop.args["combine_graph"].inputs)
    assert all(isinstance(o, ir.Value) for o in operands)


def test_it_is_one_node_with_a_named_body():
    graph = ir.capture(lambda x: swish(x, 2.0), (torch.randn(4, 3),), dynamic_shapes=({0: "n"},))
    (node,) = graph.nodes
    assert node.op == "tests::swish" and node.args["beta"] == 2.0
    body = graph.context.body(node)
    assert body.name == "tests::swish" and [n.op for n in body.graph.nodes] == [
        "aten::mul", "aten::sigmoid", "aten::mul",
    ]  # fmt: skip
    assert str(body.graph.inputs[0].type) == "f32[n, 3]"


def test_optional_tensors_lists_and_several_results():
    for args in ((torch.ones(2, 3), [0, 1]), (torch.ones(2, 3), [1], torch.ones(3))):
        graph = ir.check(ir.capture(lambda *a: minmax(*a), args))
        (node,) = graph.nodes
        body = graph.context.body(node)
        assert len(body.graph.inputs) == sum(isinstance(a, Tensor) for a in args) and len(node.outputs) == 2


def test_an_op_of_somebody_else_can_be_given_a_body():
    torch.library.define("tests::opaque", "(Tensor x) -> Tensor")
    torch.library.impl("tests::opaque", "CPU")(lambda x: torch.from_numpy(x.numpy() * 2))
    torch.library.register_fake("tests::opaque")(lambda x: torch.empty_like(x))
    handle = ir.op("tests::opaque")
    graph = ir.capture(lambda x: torch.ops.tests.opaque(x), (torch.ones(2),))
    assert graph.context.body(graph.nodes[0]) is None
    handle.body(lambda x: x * 2)
    graph = ir.capture(lambda x: handle(x), (torch.ones(2),))
    assert graph.context.body(graph.nodes[0]).name == "tests::opaque"


def test_an_op_that_torch_does_not_know():
    with pytest.raises(ValueError, match="import what defines it"):
        ir.op("tests::nowhere")


def test_kernels_and_fakes_can_be_replaced():
    @ir.custom_op("tests::host")
    def host(x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() + 1)

    @host.register_fake
    def _(x):
        return torch.empty_like(x)

    host.body(lambda x: x + 1)
    graph = ir.capture(lambda x: host(x), (torch.ones(2),))
    assert [n.op for n in graph.context.body(graph.nodes[0]).graph.nodes] == ["aten::add"]
    assert host(torch.ones(2)).tolist() == [2, 2]


@ir.custom_op("tests::noisy")
def noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x) - torch.randn_like(x)


@ir.custom_op("tests::noisy_outside")
def noisy_outside(x: Tensor) -> Tensor:
    return noisy(x) * 2


@pytest.mark.parametrize(
    "model",
    [
        lambda x: noisy(x) - noisy(x), lambda x: noisy_outside(x),
        lambda x: torch.cond(x.sum() > 0, lambda x: noisy(x) + 1, lambda x: x * 2, (x,)),
    ],
)  # fmt: skip
def test_a_body_that_draws_makes_the_graph_random(model):
    graph = ir.capture(model, (torch.randn(3),))
    assert graph.random
    assert not ir.capture(lambda x: swish(x) - swish(x), (torch.randn(3),)).random


def test_two_draws_of_a_body_stay_two():
    graph = ir.capture(noisy, (torch.randn(3),))
    body = graph.context.body(graph.nodes[0]).graph
    assert cse(body) is body


def test_what_an_op_returns_is_what_it_declares():
    @ir.custom_op("counts::many")
    def many(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 1, x + 1, x + 2

    @ir.custom_op("counts::nothing")
    def nothing(x: torch.Tensor) -> torch.Tensor:
        x * 2

    with pytest.raises(TypeError, match="counts::many returned 3 results, its annotation declares 2"):
        many(torch.ones(2))

    @ir.custom_op("counts::two")
    def two(x: torch.Tensor) -> torch.Tensor:
        return x * 1, x + 1

    with pytest.raises(TypeError, match="counts::nothing returned None, its annotation declares a Tensor"):
        nothing(torch.ones(2))
    with pytest.raises(
        ir.CaptureError, match="counts::two returned a tuple, its annotation declares a Tensor"
    ) as refused:
        ir.capture(lambda x: two(x), torch.ones(2))
    assert "without data" not in str(refused.value)


def test_annotations_that_make_no_schema_are_told_with_the_op_and_its_function():
    for fn, why in (
        (lambda x: x, "Parameter x must have a type annotation"),
        (torch.nn.functional.silu, "mutates_args were not found"),
    ):
        with pytest.raises(ValueError, match=rf"(?s)ir.custom_op\('counts::none'\) of the function at .*: .*{why}"):
            ir.custom_op("counts::none", fn, mutates_args=("nowhere",) if "mutates" in why else ())


def test_what_torch_returned_for_an_op_names_it():
    @torch.library.custom_op("counts::plain", mutates_args=())
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    plain.register_fake(lambda x: torch.empty_like(x))
    assert ir.op(plain).name == "counts::plain"
    assert check_op(plain, [(torch.ones(2),)], targets=[]).ok


def test_a_handler_for_a_misspelt_target_is_told():
    @ir.custom_op("counts::spelt")
    def spelt(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    for name, near in {"onxn": "onnx", "ONNX": "onnx", "tract": "nnef"}.items():
        with pytest.raises(ir.ExportError, match=f"a handler of counts::spelt: .* '{name}'; did you mean {near}?"):
            spelt.handler(name)
        assert name not in {r.target for r in registries()}
    spelt.handler("stablehlo")(lambda h, x: x)  # which need not be installed
    spelt.handler("a_backend_of_mine")(lambda h, x: x)
    registry("onnxx").add("counts::spelt", lambda h, x: x)  # as a backend does that is being written
    try:
        with pytest.warns(UserWarning, match="no target is called 'onnxx', which counts::spelt has .* 'onnx'"):
            warn_of_misspelt()
    finally:
        for name in ("onnxx", "stablehlo", "a_backend_of_mine"):
            registry(name).remove("counts::spelt")


def test_a_write_to_an_argument_that_is_not_declared_is_told():
    @ir.custom_op("counts::hidden_write")
    def hidden(x: Tensor, state: Tensor, more: list[Tensor]) -> Tensor:
        x = x.clone().add_(1)
        state.add_(x)
        more[1].mul_(2)
        return x + state

    def f(x, y, z):
        return hidden(x, y, [x, z]) * y

    graph = ir.capture(f, (torch.ones(2), torch.ones(2), torch.ones(2)))
    told = r'counts::hidden_write writes to its argument state and more, .* mutates_args=\["state", "more"\]'
    with pytest.raises(ir.CaptureError, match=rf"function of {told}.*\n  at .*test_custom_ops.py:\d+  `return hidden"):
        graph.context.body(graph.nodes[0])
