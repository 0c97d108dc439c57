"""TorchLib functions: torch_op, onnxscript functions as handlers, custom_translation_table; run in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnxscript
import pytest
import torch
from onnxscript import BOOL, FLOAT, INT64
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib import registration
from onnxscript.function_libs.torch_lib.tensor_typing import TFloat, TReal, TTensor

import ir
import onnx_backend
from onnx_backend import torch_op
from onnx_backend.legacy import register_custom_op_symbolic, symbolic_helper
from onnx_backend.registry import REGISTRY, load

X = torch.randn(3, 4)
ROWS = {"x": {0: "n"}}


@pytest.fixture(autouse=True)
def _no_traces():
    before = {k: list(v) for k, v in load().entries.items()}
    yield
    REGISTRY.entries.clear()
    REGISTRY.entries.update(before)


def ops(program):
    return [n.op_type for n in program.artifact.graph]


class Abs(torch.nn.Module):
    def forward(self, x):
        return torch.abs(x)


def test_aten_abs_traced():
    @torch_op(("aten::abs", "_operator::abs"), trace_only=True)
    def aten_abs(self: TReal) -> TReal:
        """abs(Tensor self) -> Tensor"""
        return op.Sqrt(op.Mul(self, self))

    program = ir.export(Abs(), (X,), dynamic_shapes=ROWS, verify=True)
    assert ops(program) == ["Mul", "Sqrt"] and not program.artifact.functions


def test_aten_abs_scripted_is_a_model_local_function():
    @torch_op("aten::abs")
    def aten_abs(self: TReal) -> TReal:
        return op.Sqrt(op.Mul(self, self))

    assert isinstance(aten_abs, onnxscript.OnnxFunction)
    program = ir.export(Abs(), (X,), dynamic_shapes=ROWS, verify=True)
    program.verify((torch.randn(7, 4),))
    (node,) = program.artifact.graph
    assert (node.domain, node.op_type) == ("pkg.onnxscript.torch_lib", "aten_abs")
    assert [f.name for f in program.artifact.functions.values()] == ["aten_abs"]


def test_private_functions_and_other_registries():
    @torch_op("aten::abs", private=True, trace_only=True)
    def _hidden(self):
        raise AssertionError

    assert ops(ir.export(Abs(), (X,))) == ["Abs"]
    theirs = registration.Registry()
    torch_op("aten::abs", registry=theirs, trace_only=True)(lambda self: op.Neg(self))
    assert "aten::abs" in theirs and ops(ir.export(Abs(), (X,))) == ["Abs"]
    ours = ir.Registry("onnx")
    torch_op("aten::abs", registry=ours, trace_only=True)(lambda self: op.Neg(self))
    assert ours.ops() == ("aten::abs.default",)


def test_the_default_overload_alone():
    @torch_op("aten::max", trace_only=True)
    def aten_max(self: TReal) -> TReal:
        return op.ReduceMax(self, keepdims=0)

    both = lambda x: (x.max(), *x.max(dim=1))  # noqa: E731
    program = ir.export(both, (X,), verify=True)
    assert ops(program).count("ReduceMax") >= 1


@torch.library.custom_op("torchlib::scaled", mutates_args=())
def scaled(x: torch.Tensor, weight: torch.Tensor | None, beta: float, steps: Sequence[int], mode: str) -> torch.Tensor:
    y = torch.tanh(x * beta).sum(list(steps), keepdim=True)
    return (y if weight is None else y * weight) + (1 if mode == "up" else -1)


@scaled.register_fake
def _(x, weight, beta, steps, mode):
    return x.sum(list(steps), keepdim=True)


def test_annotations_decide_input_or_attribute():
    kinds = {}

    @torch_op("torchlib::scaled", trace_only=True)
    def traced(x: TFloat, weight: TFloat | None = None, beta: float = 1.0, steps: Sequence[int] = (0,),
               mode: str = "up") -> TFloat:  # fmt: skip
        kinds.update(x=type(x).__name__, weight=weight, beta=beta, steps=list(steps), mode=mode, rank=len(x.shape))
        assert x.dtype == onnxscript.ir.DataType.FLOAT and x.rank == 2
        y = op.ReduceSum(op.Tanh(x * beta), op.Constant(value_ints=list(steps)), keepdims=1)
        if weight is not None:
            y = y * weight
        return y + 1.0 if mode == "up" else y - 1.0

    fn = lambda x: torch.ops.torchlib.scaled(x, None, 0.5, [1], "down")  # noqa: E731
    program = ir.export(fn, (X,), dynamic_shapes=({0: "n"},), verify=True)
    program.verify((torch.randn(6, 4),))
    assert kinds == {"x": "TracedValue", "weight": None, "beta": 0.5, "steps": [1], "mode": "down", "rank": 2}
    weighted = lambda x: torch.ops.torchlib.scaled(x, x[:, :1], 0.5, [1], "up")  # noqa: E731
    ir.export(weighted, (X,), verify=True)


@onnxscript.script()
def swish(x: FLOAT, beta: float = 1.0):
    return op.Mul(x, op.Sigmoid(op.Mul(x, op.CastLike(beta, x))))


@onnxscript.script()
def twice(x: FLOAT, beta: float = 1.0):
    return swish(swish(x, beta=beta), beta=beta)


@torch.library.custom_op("torchlib::swish", mutates_args=())
def torch_swish(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return x * torch.sigmoid(beta * x)


@torch.library.custom_op("torchlib::twice", mutates_args=())
def torch_twice(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    return torch_swish(torch_swish(x, beta), beta)


torch_swish.register_fake(lambda x, beta=1.0: torch.empty_like(x))
torch_twice.register_fake(lambda x, beta=1.0: torch.empty_like(x))


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_a_script_is_a_handler_as_it_is(opset, tmp_path):
    ir.op("torchlib::swish").handler("onnx")(swish)
    onnx_backend.register("torchlib::twice")(twice)
    fn = lambda x: torch.ops.torchlib.twice(torch.ops.torchlib.swish(x, 2.0) + torch.ops.torchlib.swish(x), 0.5)  # noqa: E731
    path = tmp_path / "model.onnx"
    program = ir.export(fn, (X,), dynamic_shapes=({0: "n"},), path=path, verify=True, opset=opset)
    program.verify((torch.randn(6, 4),))
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert sorted(f.name for f in model.functions) == ["swish", "twice"]
    assert [n.op_type for n in model.graph.node] == ["swish", "swish", "Add", "twice"]
    assert {a.name: a.f for a in model.graph.node[0].attribute} == {"beta": 2.0}


def test_a_symbolic_function_may_call_a_script():
    def symbolic(g, x, beta):
        return g.onnxscript_op(swish, x, beta_f=symbolic_helper._parse_arg(beta, "f"))

    register_custom_op_symbolic("torchlib::swish", symbolic, 9)
    program = ir.export(lambda x: torch.ops.torchlib.swish(x, 2.0), (X,), verify=True)
    assert ops(program) == ["swish"]


def test_handlers_of_one_call():
    program = ir.export(lambda x: torch.ops.torchlib.swish(x), (X,), handlers={"torchlib::swish": swish}, verify=True)
    assert ops(program) == ["swish"]


@onnxscript.script()
def normalised(x: FLOAT, scale: FLOAT, bias: FLOAT):
    return op.GroupNormalization(x, scale, bias, num_groups=2)


def test_a_script_whose_opset_means_something_else():
    torch.library.define("torchlib::normalised", "(Tensor x, Tensor s, Tensor b) -> Tensor")
    torch.library.register_fake("torchlib::normalised", lambda x, s, b: torch.empty_like(x))
    fn = lambda x, s, b: torch.ops.torchlib.normalised(x, s, b)  # noqa: E731
    args = torch.randn(1, 4, 3), torch.ones(2), torch.zeros(2)
    with pytest.raises(ir.RefusedError, match=r"GroupNormalization has changed between that and 21; use opset=18"):
        ir.export(fn, args, handlers={"torchlib::normalised": normalised}, opset=21)
    program = ir.export(fn, args, handlers={"torchlib::normalised": normalised}, opset=18)
    assert torch.allclose(program(*args), torch.nn.functional.group_norm(args[0], 2), atol=1e-4)


def test_numbers_of_a_traced_function_are_pythons():
    """As in torch.onnx: `int | None` reads as an input there, and the number is a number all the same."""

    def repeated(self, repeats: int, dim: int | None = None, output_size: int | None = None):
        tiles = [1] * (len(self.shape) + 1)
        tiles[dim + 1] = repeats
        wide = op.Expand(op.Unsqueeze(self, [dim + 1]), tiles)
        return op.Reshape(wide, [s * repeats if i == dim else s for i, s in enumerate(self.shape)])

    def clamped(self, min=None, max=None):
        return op.Min(op.Max(self, op.CastLike(min, self)), op.CastLike(max, self))

    table = {torch.ops.aten.repeat_interleave.self_int: repeated, torch.ops.aten.clamp.default: clamped}
    fn = lambda x: x.repeat_interleave(2, 1).clamp(-0.5, 1)  # noqa: E731
    program = ir.export(fn, X, custom_translation_table=table, verify=True)
    assert ops(program) == ["Unsqueeze", "Expand", "Reshape", "CastLike", "Max", "CastLike", "Min"]


def test_a_compiled_function_that_calls_another_domain():
    """onnxruntime's own ops: their domain is imported by the model as well."""
    microsoft = onnxscript.values.Opset("com.microsoft", 1)

    @onnxscript.script(onnxscript.values.Opset("custom.aten", 1))
    def gelu(self, approximate: str = "none"):
        return microsoft.Gelu(self)

    table = {torch.ops.aten.gelu.default: gelu}
    program = ir.export(torch.nn.GELU(), X, custom_translation_table=table, verify=True)
    assert program.artifact.opset_imports == {"": 20, "custom.aten": 1, "com.microsoft": 1}


def test_custom_translation_table_as_torch_takes_it():
    """The example of torch.onnx's documentation, the table unchanged; both exporters run."""

    def custom_add(x, y):
        return op.Sub(op.Add(op.Add(x, y), y), y)

    @onnxscript.script()
    def custom_swish(x: FLOAT, beta: float = 1.0) -> FLOAT:
        return op.Mul(x, op.Sigmoid(op.Mul(x, op.CastLike(beta, x))))

    table = {torch.ops.aten.add.Tensor: custom_add, torch.ops.torchlib.swish.default: custom_swish}

    class Model(torch.nn.Module):
        def forward(self, x, y):
            return torch.ops.torchlib.swish(x + y, 2.0)

    args = torch.randn(2, 3), torch.randn(2, 3)
    program = ir.export(Model(), args, target="onnx", custom_translation_table=table, verify=True)
    assert ops(program) == ["Add", "Add", "Sub", "custom_swish"]
    theirs = torch.onnx.export(Model(), args, dynamo=True, custom_translation_table=table, verbose=False)
    expected = theirs(*args)[0]
    assert torch.allclose(program(*args), expected, atol=1e-6)
    with pytest.raises(TypeError, match="no operator such as"):
        ir.export(Model(), args, target="onnx", custom_translation_table={torch.sym_max: custom_add})


def test_the_first_function_whose_types_fit():
    @onnxscript.script()
    def for_bool(x: BOOL, y: BOOL):
        return op.Or(x, y)

    @onnxscript.script()
    def for_ints(x: INT64, y: INT64):
        return op.Add(x, y)

    table = {torch.ops.aten.add.Tensor: [for_bool, for_ints]}
    ints = torch.tensor([1, 2])
    assert ops(ir.export(lambda x, y: x + y, (ints, ints), custom_translation_table=table, verify=True)) == ["for_ints"]
    bools = torch.tensor([True, False])
    assert ops(ir.export(lambda x, y: x + y, (bools, bools), custom_translation_table=table, verify=True)) == [
        "for_bool"
    ]
    refused = ir.export(lambda x, y: x + y, (X, X), custom_translation_table={torch.ops.aten.add.Tensor: [for_ints]})
    assert ops(refused) == ["for_ints"]


def test_several_results_lists_of_tensors_and_sizes():
    @torch_op("aten::topk", trace_only=True)
    def aten_topk(self: TReal, k: INT64, dim: int = -1, largest: bool = True, sorted: bool = True):
        values, indices = op.TopK(
            self, op.Reshape(k, op.Constant(value_ints=[1])), axis=dim, largest=largest, sorted=sorted
        )
        return values, indices

    @torch_op("aten::cat", trace_only=True)
    def aten_cat(tensors: Sequence[TTensor], dim: int = 0):
        return op.Concat(*tensors, axis=dim)

    @torch_op("aten::expand", trace_only=True)
    def aten_expand(self: TTensor, size: INT64, implicit: bool = False):
        return op.Expand(self, op.Cast(size, to=INT64.dtype))

    class Model(torch.nn.Module):
        def forward(self, x):
            values, indices = x.topk(2)
            return torch.cat([values, x[:, :1]], 1), indices, x[:1].expand(x.shape[0] + 1, 4)

    program = ir.export(Model(), (X,), dynamic_shapes=ROWS, verify=True)
    program.verify((torch.randn(8, 4),))
    assert {"TopK", "Concat", "Expand"} <= set(ops(program))


def test_what_a_function_does_not_take_must_be_the_default():
    torch_op("aten::add.Tensor", trace_only=True)(lambda self, other: op.Add(self, other))
    ir.export(lambda x: x + x, (X,), verify=True)
    with pytest.raises(ir.RefusedError, match="takes no argument alpha, which is 2"):
        ir.export(lambda x: torch.add(x, x, alpha=2), (X,))


def test_two_functions_for_one_op():
    torch_op("aten::abs", trace_only=True)(lambda self: op.Abs(self))
    with pytest.raises(ir.DuplicateHandlerError, match=r"test_torchlib\.py.*test_torchlib\.py"):
        torch_op("aten::abs", trace_only=True)(lambda self: op.Abs(self))
    torch_op("aten::abs", trace_only=True, complex=True)(lambda self: op.ReduceL2(self, [-1], keepdims=0))
    ir.export(Abs(), (X,), verify=True)  # real operands take the real function


def test_a_complex_variant_serves_complex_operands():
    torch_op("aten::abs", trace_only=True)(lambda self: op.Abs(self))
    torch_op("aten::abs", trace_only=True, complex=True)(lambda self: op.ReduceL2(self, [-1], keepdims=0))
    z = torch.randn(3, 4, dtype=torch.complex64)
    assert ops(ir.export(Abs(), (z,), verify=True)) == ["ReduceL2"]
    both = ir.export(lambda z: z.abs() + z.real.abs(), (z,), dynamic_shapes=({0: "n"},), verify=True)
    assert {"ReduceL2", "Abs"} <= set(ops(both))


def test_a_complex_variant_leaves_real_operands_to_the_next_handler():
    torch_op("aten::abs", trace_only=True, complex=True)(lambda self: op.ReduceL2(self, [-1], keepdims=0))
    assert ops(ir.export(Abs(), (X,), verify=True)) == ["Abs"]
