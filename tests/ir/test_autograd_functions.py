"""autograd.Function classes during capture: kept as one op where they have a `symbolic`, restored afterwards."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import ir

X = torch.rand(4, 3)
ROWS = ({0: "n"}, {0: "n"})
APPLY = vars(torch.autograd.Function)["apply"]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return 2 * a + b

    @staticmethod
    def backward(ctx, grad):
        (a,) = ctx.saved_tensors
        return 3 * grad + 0 * a, grad  # not the derivative: tells the class's own gradient from torch's

    @staticmethod
    def symbolic(g, a, b): ...


class TopK(torch.autograd.Function):
    @staticmethod
    def forward(x, k=2, scales=(1.0, 2.0), mode="up", dtype=None, bias=None):
        values, indices = x.topk(k)
        return values * scales[0], indices

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def symbolic(g, *args): ...


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.sin()


class Host(torch.autograd.Function):
    """Runs where fake tensors cannot follow."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.numpy() + 1)

    @staticmethod
    def symbolic(g, x): ...


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.mark_dirty(a)
        return a.add_(b)

    @staticmethod
    def symbolic(g, a, b): ...


double = Double.apply  # taken before any capture, as user code does


def as_before(cls):
    return (
        vars(torch.autograd.Function)["apply"] is APPLY
        and isinstance(vars(cls)["forward"], staticmethod)
        and not (hasattr(cls.forward, "__wrapped__"))
    )


def ops(graph):
    return [n.op for n in graph.nodes]


def test_apply_is_one_node_and_both_inputs_are_read():
    graph = ir.check(ir.capture(lambda a, b: double(a, b), (X, X), dynamic_shapes=ROWS))  # one tensor given twice
    (node,) = graph.nodes
    assert node.op.startswith("autograd_function::Double")
    assert (node.args["a"], node.args["b"]) == graph.inputs and graph.inputs[0] is not graph.inputs[1]
    assert str(node.outputs[0].type) == "f32[n, 3]"
    assert [n.op for n in graph.context.body(node).graph.nodes] == ["aten::mul", "aten::add"]


def test_static_arguments_several_results_and_setup_context():
    graph = ir.capture(lambda x: TopK.apply(x, 2, dtype=torch.float64), (X,))
    (node,) = graph.nodes
    assert [str(v.type) for v in node.outputs] == ["f32[4, 2]", "i64[4, 2]"]
    assert {k: a for k, a in node.args.items() if k != "x"} == {
        "k": 2, "scales": (1.0, 2.0), "mode": "up", "dtype": ir.DType.float64, "bias": None,
    }  # fmt: skip
    other = ir.capture(lambda x: TopK.apply(x, 1, (1, 1), "up", None, x), (X,)).nodes[0]
    assert other.op != node.op and other.args["bias"] is other.args["x"]


def test_without_a_symbolic_it_is_traced_through():
    assert ops(ir.capture(lambda a: Plain.apply(a), (X,))) == ["aten::sin"]


def test_forward_that_needs_data_asks_for_a_fake_and_takes_one():
    fn = lambda x: Host.apply(x)  # noqa: E731
    with pytest.raises(ir.CaptureError, match=r"op_from_function\(Host, fake=lambda x: torch.empty_like\(x\)\)"):
        ir.capture(fn, (X,))
    assert as_before(Host)
    op = ir.op_from_function(Host, fake=lambda x: torch.empty_like(x))
    graph = ir.capture(fn, (X,), dynamic_shapes=({0: "n"},))
    (node,) = graph.nodes
    assert node.op == op.name and str(node.outputs[0].type) == "f32[n, 3]"
    assert graph.context.body(node) is None and "numpy" in graph.context.body_error(node).lower()
    assert torch.equal(op(X), X + 1)


def test_a_class_without_symbolic_becomes_an_op_on_request():
    class Shift(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, by: float = 1.0) -> Tensor:
            return x + by

    op = ir.op_from_function(Shift, "tests::shift")
    assert str(torch.ops.tests.shift.default._schema) == "tests::shift(Tensor x, float by=1.) -> Tensor"
    assert ops(ir.capture(lambda x: Shift.apply(x, 2.0), (X,))) == ["tests::shift"]
    assert torch.equal(op(X, 2.0), X + 2)
    with pytest.raises(ValueError, match="tests::shift already"):
        ir.op_from_function(Shift)


def test_the_op_keeps_the_class_gradient():
    class Tripled(Double):
        pass

    op = ir.op_from_function(Tripled)
    a, b = (torch.rand(3, requires_grad=True) for _ in range(2))
    op(a, b).sum().backward()
    assert a.grad.tolist() == [3, 3, 3] and b.grad.tolist() == [1, 1, 1]


def test_a_forward_that_writes_to_its_argument():
    class Model(nn.Module):
        def forward(self, a, b):
            y = a * 1
            return InPlace.apply(y, b) + y

    graph = ir.check(ir.capture(Model(), (X, X)))
    node = graph.nodes[1]
    assert node.op.startswith("autograd_function::InPlace") and len(node.outputs) == 2
    assert graph.nodes[2].args["other"] is node.outputs[1]  # the model reads the new content
    args = torch.rand(4, 3), torch.rand(4, 3)
    (reference,) = graph.context.reference(graph, args, {})
    assert torch.allclose(torch.from_numpy(reference), 2 * (args[0] + args[1]))


def test_an_argument_that_no_op_can_hold():
    class Called(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, fn):
            return fn(x)

        symbolic = staticmethod(lambda g, x, fn: None)

    with pytest.raises(ir.CaptureError, match=r"'fn' of .*Called"):
        ir.capture(lambda x: Called.apply(x, torch.sin), (X,))


def test_torch_is_as_before_after_errors_and_in_other_threads():
    seen = []

    class Other(nn.Module):
        def forward(self, x):
            thread = threading.Thread(target=lambda: seen.append(Double.apply(torch.ones(2), torch.ones(2))))
            thread.start()
            thread.join()
            raise RuntimeError("on purpose")

    with pytest.raises(ir.CaptureError, match="on purpose"):
        ir.capture(Other(), (X,))
    assert seen[0].tolist() == [3, 3] and as_before(Double)
    a = torch.ones(2, requires_grad=True)
    assert Double.apply(a, a).grad_fn.name() == "DoubleBackward"


def test_defaults_that_are_tuples():
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, order=(1, 0), factors=(0.5,)):
            return x.permute(order) * factors[0]

    ir.op_from_function(Turned, "functions::turned")
    schema = torch.ops.functions.turned.default._schema
    assert str(schema) == "functions::turned(Tensor x, SymInt[] order=[1, 0], float[] factors=[0.5]) -> Tensor"
    graph = ir.capture(lambda x: Turned.apply(x), (torch.rand(2, 3),))
    assert [n.op for n in graph.nodes] == ["functions::turned"] and graph.outputs[0].type.shape == (3, 2)
