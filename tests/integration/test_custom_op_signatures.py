"""What one definition may take and return: every argument type, writes, sizes that depend on data, gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ir
from ir.testing import check_op

TARGETS = ("onnx", "nnef", "eager")
X = torch.rand(4, 3)
ROWS = ({0: "n"},)


@ir.custom_op("signatures::all")
def everything(
    xs: list[Tensor],
    maybe: list[Tensor | None],
    weight: Tensor | None,
    mode: str,
    dtype: torch.dtype,
    n: int,
    factors: list[float],
    flag: bool,
    order: list[int] | None = None,
    eps: float | None = None,
    device: torch.device | None = None,
) -> list[Tensor]:
    y = sum(xs) * factors[0] + n
    y = y if maybe[0] is None else y + maybe[0]
    y = y if maybe[1] is None else y - maybe[1]
    y = y if weight is None else y * weight
    y = -y if mode == "negative" else y
    y = y + (0.5 if eps is None else eps)
    y = y.permute(order) if flag and order is not None else y
    return [y.to(dtype), y * 2]


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        first = everything([x, x * 2], [None, x], None, "negative", torch.float64, x.shape[0], [0.5, 2.0], True)
        second = everything([x], [x, None], self.weight, "plain", torch.float32, 1, [2.0], True, [1, 0], 0.25)
        return first, second


@pytest.mark.parametrize("target", TARGETS)
def test_every_argument_type(target):
    graph = ir.capture(Everything(), X, dynamic_shapes=ROWS)
    first = next(n for n in graph.nodes if n.op == "signatures::all")
    static = {k: first.args[k] for k in ("weight", "mode", "dtype", "factors", "flag", "order", "eps", "device")}
    assert static == {
        "weight": None, "mode": "negative", "dtype": ir.DType.float64, "factors": (0.5, 2.0), "flag": True,
        "order": None, "eps": None, "device": None,
    }  # fmt: skip
    assert isinstance(first.args["n"], ir.Expr)
    program = ir.export(graph, target=target, verify=True)
    program.verify((torch.rand(7, 3),))


@ir.custom_op("signatures::update", mutates_args={"state", "others"})
def update(state: Tensor, others: list[Tensor], x: Tensor, factor: float = 1.0) -> Tensor:
    state.add_(x * factor)
    for other in others:
        other.mul_(2.0)
    return state.sum(-1)


@ir.custom_op("signatures::fill", mutates_args="unknown")
def fill(target: Tensor, x: Tensor) -> None:
    target.copy_(x)


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(3))
        self.register_buffer("table", torch.ones(2, 3))

    def forward(self, x):
        a = x * 1
        y = update(self.state, [self.table[0], a], x.sum(0), 2.0)
        row = self.table[1]
        fill(row, self.state)
        return y, a, self.table * 3


@pytest.mark.parametrize("target", TARGETS)
def test_writes_are_results(target):
    graph = ir.check(ir.capture(Writes(), X, dynamic_shapes=ROWS))
    node = next(n for n in graph.nodes if n.op == "signatures::update")
    assert len(node.outputs) == 4 and list(graph.updates) == ["state", "table"]
    program = ir.export(graph, target=target, verify=True)
    if target != "eager":  # which keeps what it wrote to its buffers, as the module does
        program.verify((torch.rand(7, 3),))


def test_a_handler_returns_the_new_contents_last():
    def native(h, state, others, x, factor):
        state = h.emit("Add", state, h.emit("Mul", x, factor))
        return [h.reduce("ReduceSum", state, [0]), state, *(h.emit("Mul", o, 2.0) for o in others)]

    handlers = {"signatures::update": native, "signatures::fill": lambda h, target, x: [x, x]}
    program = ir.export(Writes(), X, handlers=handlers, verify=True)
    assert not program.artifact.functions


@ir.custom_op("signatures::above")
def above(x: Tensor, limit: float) -> Tensor:
    return torch.nonzero(x > limit)


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_a_size_that_depends_on_the_data(target):
    fn = lambda x: (above(x, 0.5) * 2, above(x, 0.2).sum(0))  # noqa: E731
    program = ir.export(fn, X, target=target, dynamic_shapes=ROWS, verify=True)
    for n in (1, 9):
        program.verify((torch.rand(n, 3),))


@ir.custom_op("signatures::lists")
def lists(
    x: Tensor, more: list[Tensor] | None = None, dims: list[int] = (0,), factors: Sequence[float] = (0.5, 2)
) -> Tensor:
    return sum(more or [], start=x).sum(list(dims)) * factors[1]


@pytest.mark.parametrize("target", TARGETS)
def test_lists_as_defaults_and_lists_left_out(target):
    """What torch.library's own reading of annotations does not take."""
    schema = "Tensor x, Tensor[]? more=None, SymInt[] dims=[0], float[] factors=[0.5, 2.]"
    assert str(torch.ops.signatures.lists.default._schema) == f"signatures::lists({schema}) -> Tensor"
    fn = lambda x: (lists(x), lists(x, [x, x], [0, 1], factors=[1.0, 3.0]))  # noqa: E731
    ir.export(fn, X, target=target, dynamic_shapes=ROWS, verify=True)


def test_a_function_that_runs_on_data_alone_says_what_to_write():
    """The line that the error prints, pasted."""

    @ir.custom_op("signatures::on_data")
    def on_data(x: Tensor, k: float = 2.0, *, mode: str = "a") -> Tensor:
        return x * k if x.sum() > 0 else torch.from_numpy(x.numpy() * k)

    fn = lambda x: on_data(x) + on_data(x, mode="b")  # noqa: E731
    with pytest.raises(ir.CaptureError) as error:
        ir.export(fn, X)
    line = next(text for text in map(str.strip, str(error.value).splitlines()) if text.startswith("ir.op("))
    assert line == ("ir.op(\"signatures::on_data\").register_fake(lambda x, k=2.0, *, mode='a': torch.empty_like(x))")
    exec(line, {"ir": ir, "torch": torch})
    ir.export(fn, X, target="eager", verify=True)
    with pytest.raises(ir.UnsupportedOpsError, match="signatures::on_data"):
        ir.export(fn, X)
    on_data.body(lambda x, k, *, mode: x * k)
    ir.export(fn, X, verify=True)


@ir.custom_op("signatures::nothing")
def nothing(x: Tensor) -> None:
    pass


@pytest.mark.parametrize("target", TARGETS)
def test_an_op_without_result(target):
    ir.export(lambda x: (nothing(x), x + 1)[1], X, target=target, verify=True)


@ir.custom_op("signatures::on_the_way")
def on_the_way(x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    return x[x > 0.3].mean(), x[x > 0.6][:k], torch.cat([x[x > 0.2], x[x < 0.7]])


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_data_decides_inside_of_a_body(target):
    """torch wants each such size to be one of a result's; a body may need more of them."""
    fn = lambda x: [y * 2 for y in on_the_way(x, 2)]  # noqa: E731
    if target == "nnef" and torch.__version__ < "2.12":  # which has a symbol of its own for what a slice leaves
        with pytest.raises(ir.RefusedError, match=r"the size u\d+ depends on data"):
            ir.export(fn, X, target=target, dynamic_shapes=ROWS)
        return
    program = ir.export(fn, X, target=target, dynamic_shapes=ROWS, verify=True)
    for n in (2, 9):
        program.verify((torch.rand(n, 3),))
    check_op(on_the_way, [(X, 2), (torch.rand(7, 3), 2)], targets=[])


@ir.custom_op("signatures::table")
def table(n: int, d: int) -> Tensor:
    return torch.outer(torch.arange(n).float(), torch.arange(d) / d)


@ir.custom_op("signatures::first_rows")
def first_rows(weight: Tensor, n: int) -> Tensor:
    return weight[:n] + table(n, weight.shape[1])


@pytest.mark.parametrize("target", TARGETS)
def test_a_size_that_no_operand_has(target):
    """It comes into the body from outside, within the range that the program has it in."""
    weight = torch.rand(50, 3)
    fn = lambda x: first_rows(weight, x.shape[0]) + table(x.shape[0], 3) + x  # noqa: E731
    program = ir.export(fn, X, target=target, dynamic_shapes=ROWS, verify=True)
    program.verify((torch.rand(9, 3),))


@ir.custom_op("signatures::host")
def host(x: Tensor, limit: float) -> Tensor:
    return torch.from_numpy(np.argwhere(x.numpy() > limit))


@host.register_fake
def _(x, limit):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.dim(), dtype=torch.int64)


def test_a_kernel_in_numpy_asks_for_a_body():
    fn = lambda x: host(x, 0.5)  # noqa: E731
    with pytest.raises(ir.UnsupportedOpsError) as error:
        ir.export(fn, X)
    (missing,) = error.value.missing
    assert "numpy" in missing.why.lower()
    assert missing.skeleton.splitlines()[0] == "# a body, if torch functions can say it: it serves every target"
    assert "def _(x, limit): ..." in missing.skeleton
    ir.export(fn, X, target="eager", verify=True)  # which runs the kernel
    host.body(lambda x, limit: torch.nonzero(x > limit))
    program = ir.export(fn, X, dynamic_shapes=ROWS, verify=True)
    program.verify((torch.rand(9, 3),))


@ir.custom_op("signatures::outer")
def outer(x: Tensor) -> Tensor:
    return everything([nn.functional.gelu(x)], [None, None], None, "plain", torch.float32, 2, [1.0], False)[0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_body_that_calls_another_custom_op(target):
    program = ir.export(lambda x: outer(x) + 1, X, target=target, dynamic_shapes=ROWS, verify=True)
    program.verify((torch.rand(6, 3),))


def test_kernels_by_device_and_a_gradient_of_its_own():
    @ir.custom_op("signatures::devices", device_types="cpu")
    def devices(x: Tensor) -> Tensor:
        return x * 2

    called = []

    @devices.kernel("cuda")
    def _(x):
        called.append(x.device)
        return x * 2

    devices.register_autograd(lambda ctx, grad: grad * 7)
    x = torch.ones(2, requires_grad=True)
    devices(x).sum().backward()
    assert x.grad.tolist() == [7, 7] and not called
    name = "signatures::devices"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
    ir.export(lambda x: devices(x), X, verify=True)


def test_opcheck():
    torch.library.opcheck(torch.ops.signatures.outer.default, (torch.rand(2, 3, requires_grad=True),))
    torch.library.opcheck(torch.ops.signatures.fill.default, (torch.rand(3), torch.rand(3)))
    args = torch.rand(3), [torch.rand(3)], torch.rand(3)
    torch.library.opcheck(torch.ops.signatures.update.default, args)
