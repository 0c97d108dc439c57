"""Symbolic functions of torch.onnx's TorchScript exporter, import lines changed, run in onnxruntime."""

from __future__ import annotations

import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from torch import nn

import ir
from onnx_backend import legacy
from onnx_backend.legacy import (
    parse_args,
    register_custom_op_symbolic,
    register_op,
    symbolic_helper,
    unregister_custom_op_symbolic,
)
from onnx_backend.registry import REGISTRY, load

X = torch.rand(1, 3, 10, 10)


@pytest.fixture(autouse=True)
def _no_traces():
    before = {k: list(v) for k, v in load().entries.items()}
    yield
    REGISTRY.entries.clear()
    REGISTRY.entries.update(before)


def ops(program):
    return [n.op_type for n in program.artifact.graph]


class Asinh(nn.Module):
    def forward(self, x):
        return torch.asinh(x)


def asinh_symbolic(g, input, *, out=None):
    return g.op("Asinh", input)


def test_asinh_of_opset_9(tmp_path):
    register_op("asinh", asinh_symbolic, "", 9)
    path = tmp_path / "asinh.onnx"
    ir.export(Asinh(), X, target="onnx", path=path, input_names=["0"])
    session = onnxruntime.InferenceSession(path)
    (result,) = session.run(None, {"0": X.numpy()})
    assert torch.allclose(torch.from_numpy(result), torch.asinh(X))
    assert [n.op_type for n in onnx.load(path).graph.node] == ["Asinh"]


def test_an_opset_version_means_from_here_on():
    written = []

    def of(version):
        def symbolic(g, self):
            written.append((version, g.opset))
            return g.op("Asinh", self)

        return symbolic

    for version in (9, 15, 20):
        register_custom_op_symbolic("aten::asinh", of(version), version)
    for opset in (13, 14, 15, 19, 20, 21):
        ir.export(Asinh(), X, target="onnx", opset=opset, verify=True)
    assert written == [(9, 13), (9, 14), (15, 15), (15, 19), (20, 20), (20, 21)]
    unregister_custom_op_symbolic("aten::asinh", 15)
    ir.export(Asinh(), X, target="onnx", opset=19)
    assert written[-1] == (9, 19)
    register_custom_op_symbolic("aten::asinh", of(10), 9)  # a notebook's cell run again
    ir.export(Asinh(), X, target="onnx", opset=13)
    assert written[-1] == (10, 13)


def test_constants_take_part_in_promotion_as_in_torch():
    def symbolic(g, self, other, alpha=None):
        two = g.op("Constant", value_t=torch.tensor([2]))  # int64 beside float32
        return g.op("Add", g.op("Mul", self, two), other)

    register_custom_op_symbolic("aten::add", symbolic, 9)
    for dtype in (torch.float32, torch.float64, torch.int64):
        program = ir.export(lambda a, b: a + b, (torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype)))
        assert program(*(torch.ones(2, dtype=dtype) for _ in "ab")).tolist() == [3, 3]


@parse_args("v", "i", "b", "f", "is", "s", "t", "v", "none")
def unpacked(g, x, i, b, f, ints, s, t, missing, unused):
    assert (i, b, f, ints, s, missing.node().mustBeNone()) == (3, True, 0.5, [1, 2], "up", True)
    assert torch.equal(t, torch.tensor(0.25)) and symbolic_helper._is_none(missing)
    assert unused.type().kind() == "ListType"
    return g.op("Identity", x)


def test_parse_args_unpacks_by_letter():
    torch.library.define(
        "legacy::args",
        "(Tensor x, int i, bool b, float f, int[] n, str s, float t, Tensor? m, Tensor[] u) -> Tensor",
    )
    torch.library.register_fake("legacy::args")(lambda x, *a: torch.empty_like(x))
    register_custom_op_symbolic("legacy::args", unpacked, 9)
    fn = lambda x: torch.ops.legacy.args(x, 3, True, 0.5, [1, 2], "up", 0.25, None, [x, x])  # noqa: E731
    assert torch.equal(ir.export(fn, X)(X), X)


def test_a_size_is_no_constant():
    torch.library.define("legacy::size", "(Tensor x, SymInt n) -> Tensor")
    torch.library.register_fake("legacy::size")(lambda x, n: torch.empty_like(x))
    register_custom_op_symbolic("legacy::size", parse_args("v", "i")(lambda g, x, n: g.op("Identity", x)), 9)
    fn = lambda x: torch.ops.legacy.size(x, x.shape[0])  # noqa: E731
    ir.export(fn, (torch.ones(3),))
    with pytest.raises(ir.RefusedError, match=r"wants the constant 'i', which is n: only known at run time"):
        ir.export(fn, (torch.ones(3),), dynamic_shapes=({0: "n"},))
    register_custom_op_symbolic("legacy::size", lambda g, x, n: g.op("Mul", x, g.op("Cast", n, to_i=1)), 9)
    program = ir.export(fn, (torch.ones(3),), dynamic_shapes=({0: "n"},))
    assert program(torch.ones(5)).tolist() == [5] * 5


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, stride, scale, mode):
        return x * scale, (x * scale).sum(-1)

    @staticmethod
    def symbolic(g, x, stride, scale, mode):
        assert (stride, scale, mode) == ((1, 2), 0.5, "fast") or stride == [1, 2]
        assert x.type().sizes() is None and x.type().varyingSizes() == [None, 4] and x.type().dim() == 2
        assert x.type().dtype() is torch.float32 and x.type().scalarType() == "Float"
        return g.op("custom::two", x, stride_i=stride, scale_f=1, mode_s=mode, value_t=torch.tensor([1.5]), outputs=2)


def test_a_custom_domain_with_attributes_of_each_kind(tmp_path):
    path = tmp_path / "two.onnx"
    fn = lambda x: TwoResults.apply(x, (1, 2), 0.5, "fast")  # noqa: E731
    program = ir.export(fn, (torch.rand(3, 4),), path=path, dynamic_shapes=({0: "n"},), custom_opsets={"custom": 7})
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert {o.domain: o.version for o in model.opset_import} == {"": 20, "custom": 7}
    (node,) = program.artifact.graph
    assert (node.domain, node.op_type) == ("custom", "two")
    kinds = {a.name: (a.type.name, a.value) for a in node.attributes.values() if a.name != "value"}
    assert kinds == {"stride": ("INTS", (1, 2)), "scale": ("FLOAT", 1.0), "mode": ("STRING", "fast")}
    assert node.attributes["value"].as_tensor().numpy().tolist() == [1.5]
    assert [str(o.shape) for o in program.artifact.graph.outputs] == ["[n,4]", "[n]"]
    assert [o.dtype for o in program.artifact.graph.outputs] == [onnx_ir.DataType.FLOAT] * 2
    with pytest.raises(ir.RuntimeFailure, match="two"):
        program.verify()


class Gelu(torch.autograd.Function):
    """Python values of Function arguments, None included, and the common helpers."""

    @staticmethod
    def forward(ctx, x, bias=None, dim=-1):
        y = x if bias is None else x + bias
        return torch.nn.functional.gelu(y).unsqueeze(0).sum(dim)

    @staticmethod
    def symbolic(g, x, bias=None, dim=-1):
        if bias is not None:
            x = g.op("Add", x, bias)
        rank = symbolic_helper._get_tensor_rank(x)
        half = g.op("Mul", x, g.constant(0.5))
        erf = g.op("Erf", g.op("Div", x, torch.tensor(2.0).sqrt()))
        y = symbolic_helper._unsqueeze_helper(g, g.op("Mul", half, g.op("Add", erf, 1.0)), [0])
        return symbolic_helper._reducesum_helper(g, y, axes_i=[dim % (rank + 1)], keepdims_i=0)


def test_helpers_and_arguments_left_out():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return Gelu.apply(x), Gelu.apply(x, self.bias, 1)

    program = ir.export(Model(), (torch.randn(3, 4),), dynamic_shapes=({0: "n"},), verify=True)
    assert "Erf" in ops(program) and not program.artifact.functions
    program.verify((torch.randn(6, 4),))


def test_other_targets_take_the_body_and_the_symbolic_serves_onnx_alone():
    graph = ir.capture(lambda x: Gelu.apply(x), (torch.randn(3, 4),))
    assert [n.op.startswith("autograd_function::Gelu") for n in graph.nodes] == [True]
    assert [n.op for n in graph.context.body(graph.nodes[0]).graph.nodes] == [
        "aten::gelu",
        "aten::unsqueeze",
        "aten::sum",
    ]


def test_a_registered_handler_comes_before_the_symbolic():
    op = ir.op_from_function(type("Same", (Gelu,), {}), "legacy::same")

    def handler(h, x, bias, dim):
        return h.emit("ReduceSum", h.emit("Unsqueeze", h.emit("Gelu", x), [0]), [dim], keepdims=0)

    op.handler("onnx")(handler)
    fn = lambda x: torch.ops.legacy.same(x, None, 2)  # noqa: E731
    program = ir.export(fn, (torch.randn(3, 4),))
    assert "Gelu" in ops(program)


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def symbolic(g, x, factor):
        return g.op("Mul", x, g.op("Constant", value_t=torch.tensor(float(factor))))


def test_a_size_where_a_symbolic_wants_a_number():
    """Its own form serves numbers; for a size that is known at run time only there is `forward`."""
    args = (torch.rand(3, 4),)
    program = ir.export(lambda x: Times.apply(x, 3), args, dynamic_shapes=({0: "n"},), verify=True)
    assert ops(program) == ["Mul"]
    program = ir.export(lambda x: Times.apply(x, x.shape[0]), args, dynamic_shapes=({0: "n"},), verify=True)
    program.verify(torch.rand(7, 4))


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.mark_dirty(a)
        return a.add_(b)

    @staticmethod
    def symbolic(g, a, b):
        return g.op("Add", a, b)


def test_a_function_that_returns_what_it_writes_to():
    class Model(nn.Module):
        def forward(self, a, b):
            y = a * 2
            InPlace.apply(y, b)
            return y

    args = torch.rand(3), torch.rand(3)
    ir.export(Model(), args, verify=True)


@pytest.mark.parametrize(
    ("symbolic", "error", "match"),
    [
        (lambda g, x: g.op("NoSuchOp", x), TypeError, "NoSuchOp is no ONNX op; one of your own has a domain"),
        (lambda g, x: g.op("softmx", x), TypeError, "softmx is no ONNX op; the nearest is Softmax"),
        (lambda g, x: g.op("Softmax", x, axes_i=1), TypeError, "unknown attributes {'axes'}"),
        (lambda g, x: g.op("Softmax", x, axis=1), ValueError, "write axis_i"),
        (lambda g: g.constant(1.0), ir.RefusedError, "takes no argument self"),
        (lambda g, x, y: x, ir.RefusedError, r"asks for \['y'\]"),
        (lambda g, x: (), ir.RefusedError, "returns 0 results of 1"),
    ],
)
def test_what_is_wrong_is_said(symbolic, error, match):
    register_custom_op_symbolic("aten::asinh", symbolic, 9)
    with pytest.raises(error, match=match):
        ir.export(Asinh(), X)


@pytest.mark.parametrize(
    ("symbolic", "match"),
    [
        (lambda g, x: g.at("nonzero", x), "ATen node 'nonzero'"),
        (lambda g, x: symbolic_helper._unimplemented("nonzero", "never"), "does not implement nonzero"),
    ],
)
def test_what_a_symbolic_refuses_is_said_where_there_is_no_body(symbolic, match):
    register_custom_op_symbolic("aten::nonzero", symbolic, 9)
    with pytest.raises(ir.RefusedError, match=match):
        ir.export(lambda x: torch.nonzero(x), X)


def test_lists_of_numbers_are_constants():
    """As after TorchScript's constant propagation, for functions that do without parse_args."""

    def symbolic(g, self, shifts, dims):
        (shift,), (dim,) = (symbolic_helper._maybe_get_const(x, "is") for x in (shifts, dims))
        back = symbolic_helper._slice_helper(g, self, axes=[dim], starts=[-shift], ends=[2**63 - 1])
        front = symbolic_helper._slice_helper(g, self, axes=[dim], starts=[0], ends=[-shift])
        return g.op("Concat", back, front, axis_i=dim)

    register_custom_op_symbolic("aten::roll", symbolic, 9)
    program = ir.export(lambda x: x.roll([2], [1]), X, verify=True)
    assert ops(program) == ["Slice", "Slice", "Concat"]


def test_dtypes_come_as_torchscripts_numbers():
    def symbolic(g, self, dtype, *rest):
        kind = legacy.JitScalarType(symbolic_helper._get_const(dtype, "i", "dtype"))
        assert kind is legacy.JitScalarType.DOUBLE and kind.dtype() is torch.float64
        return g.op("Cast", self, to_i=symbolic_helper.scalar_type_to_onnx[kind])

    register_custom_op_symbolic("aten::to.dtype", symbolic, 9)
    assert ir.export(lambda x: x.to(torch.float64), (X,), verify=True)(X).dtype is torch.float64
