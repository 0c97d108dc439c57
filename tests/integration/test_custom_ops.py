"""Custom ops on every target, in their real runtimes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ir
from ir.testing import check_op

TARGETS = ("onnx", "nnef", "eager")


@ir.custom_op("demo::swish")
def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@ir.custom_op("demo::minmax")
def minmax(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amin(-1), x.amax(-1)


@ir.custom_op("demo::scale")
def scale(x: Tensor, weight: Tensor | None = None) -> Tensor:
    return x * 2 if weight is None else x * weight


@ir.custom_op("demo::shuffle")
def shuffle(x: Tensor, order: list[int]) -> Tensor:
    return x.permute(order) * 1.0


@ir.custom_op("demo::twice")
def twice(x: Tensor) -> Tensor:
    return swish(swish(x, 0.5), 0.5)


class OneCall(nn.Module):
    def forward(self, x):
        return swish(x, 2.0) + 1


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        low, high = minmax(scale(x, self.weight))
        y = swish(scale(x), 2.0) + swish(x, 1.0) + swish(x, 2.0)
        return shuffle(y, [1, 0]) + low, high, twice(x)


X = torch.randn(3, 4)
SHAPES = {"x": {0: "batch"}}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", [OneCall(), Several()], ids=lambda m: type(m).__name__)
def test_equal_to_torch_at_two_sizes(model, target):
    program = ir.export(model, (X,), target=target, dynamic_shapes=SHAPES, verify=True)
    program.verify((torch.randn(7, 4),))


def calls(program):
    """How often the artifact calls demo::swish by name."""
    if program.target.name == "onnx":
        return sum(n.domain == "demo" for n in program.artifact.graph)
    if program.target.name == "nnef":
        return sum(op.name.startswith("demo_swish") for op in program.artifact.operations)
    return program.artifact.listing().count("swish(")


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_without_handlers_it_is_a_named_call(target):
    assert calls(ir.export(OneCall(), (X,), target=target)) == 1


def test_two_static_arguments_are_two_functions():
    program = ir.export(Several(), (X,), target="onnx")
    names = sorted(f.name for f in program.artifact.functions.values())
    assert [n for n in names if n.startswith("swish")] == ["swish", "swish_1", "swish_2"]
    assert calls(program) == 8


def test_with_a_handler_the_function_is_gone():
    def native(h, x, beta):
        return h.emit("Mul", x, h.emit("Sigmoid", h.emit("Mul", x, beta)))

    program = ir.export(OneCall(), (X,), target="onnx", handlers={"demo::swish": native}, verify=True)
    assert calls(program) == 0 and not program.artifact.functions
    assert [n.op_type for n in program.artifact.graph] == ["Mul", "Sigmoid", "Mul", "Add"]


def test_a_registered_handler_serves_one_target_only():
    @swish.handler("onnx")
    def _(h, x, beta):
        return h.emit("Mul", x, h.emit("Sigmoid", h.emit("Mul", x, beta)))

    try:
        assert calls(ir.export(OneCall(), (X,), target="onnx", verify=True)) == 0
        assert calls(ir.export(OneCall(), (X,), target="nnef", verify=True)) == 1
    finally:
        ir.registry.registry("onnx").remove("demo::swish")


def test_eager_without_a_handler_is_a_nested_closure():
    without = ir.export(OneCall(), (X,), target="eager", verify=True)
    kernel = ir.export(OneCall(), (X,), target="eager", verify=True,
                       handlers={"demo::swish": lambda h, x, beta: h.emit(swish, x, beta)})  # fmt: skip
    assert without.artifact.listing() != kernel.artifact.listing()


def test_unknown_ops_fail_on_every_target_that_has_no_kernel():
    torch.library.define("demo::opaque", "(Tensor x) -> Tensor")
    torch.library.impl("demo::opaque", "CPU")(lambda x: x + 1)
    torch.library.register_fake("demo::opaque")(lambda x: torch.empty_like(x))
    fn = lambda x: torch.ops.demo.opaque(x)  # noqa: E731
    for target in ("onnx", "nnef"):
        with pytest.raises(ir.UnsupportedOpsError, match="demo::opaque"):
            ir.export(fn, (X,), target=target)
    ir.export(fn, (X,), target="eager", verify=True)


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_verify_takes_what_export_takes(target, tmp_path):
    suffix = {"onnx": "onnx", "nnef": "nnef.tgz"}[target]
    program = ir.export(OneCall(), X, target=target, dynamic_shapes=SHAPES, path=tmp_path / f"m.{suffix}", verify=True)
    more = torch.randn(6, 4)
    for args in (more, (more,), [more]):
        assert program.verify(args).rows[0].shape == (6, 4)
    with pytest.raises(ir.ExportError, match="the program was made for"):
        program.verify(kwargs={"x": more})
    with pytest.raises(TypeError, match="give a tensor, or the arguments as a tuple"):
        program.verify({"x": more})


@ir.custom_op("demo::times")
def times(x: Tensor, factor: float) -> Tensor:
    return x * factor


@pytest.mark.parametrize(("target", "op"), [("onnx", "Mul"), ("nnef", "mul")])
def test_a_number_is_not_cut_to_an_operands_integers(target, op):
    """A handler that did not think of integers refuses them; the body serves."""
    handlers = {"demo::times": lambda h, x, factor: h.emit(op, x, factor)}
    for x in (torch.arange(4), X):
        ir.export(lambda x: times(x, 1.5), x, target=target, handlers=handlers, verify=True)


def test_options_that_are_not_there_are_told_with_those_that_are():
    for option, instead in (("opset_version", "give opset="), ("f", "give path="), ("dynamic_axes", "dynamic_shapes=")):
        with pytest.raises(TypeError, match=f"{option!r}.*{instead}.*custom_opsets"):
            ir.export(OneCall(), X, **{option: 17})


@ir.custom_op("demo::placed")
def placed(x: Tensor) -> Tensor:
    return x * torch.linspace(0, 1, x.shape[1]) + torch.tensor(x.shape[1]).to(x.dtype) * torch.as_tensor([x.shape[0]])


def test_sizes_are_numbers_of_a_body():
    check_op(placed, [(torch.randn(2, 3),), (torch.randn(5, 4),)], targets=TARGETS)


@pytest.mark.parametrize("target", ["onnx", "eager"])
def test_an_op_that_is_defined_once_more_loses_the_handlers_it_had(target: str) -> None:
    """As in a notebook: the cell is run again with another function, and with its handlers or without."""
    x = torch.ones(2)

    def made_by(factor: float, handled: bool) -> list[float]:
        @ir.custom_op(f"again::scaled_{target}")
        def op(x: Tensor) -> Tensor:
            return x * factor

        if handled:
            op.handler(target)(lambda h, x: h.emit("Mul" if target == "onnx" else torch.mul, x, factor))
        return ir.export(lambda x: op(x), x, target=target)(x).tolist()

    assert made_by(2.0, True) == [2.0, 2.0]
    assert made_by(3.0, True) == [3.0, 3.0]
    assert made_by(4.0, False) == [4.0, 4.0]
