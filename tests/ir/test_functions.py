"""Functions as models: builtins of torch, partial functions, and those of `*args`."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.nn.functional as F

import ir

X, N = torch.randn(3, 4), {0: "n"}


@pytest.mark.parametrize(
    ("fn", "args", "shapes"),
    [
        (torch.add, (X, X), (N, N)),
        (torch.relu, (X,), (N,)),
        (torch.mv, (X, X[0]), [N, None]),
        (torch.cat, ([X, X],), ([N, N],)),
        (torch.cat, ([X],), ([N],)),
        (torch.cat, ([X],), (([N],),)),
        (F.linear, (X, X), (N, None)),
        (torch.Tensor.mul, (X, X), (N, N)),
        (torch.ops.aten.add.Tensor, (X, X), (N, N)),
        (operator.add, (X, X), {"a": N, "b": N}),
        (functools.partial(torch.add, alpha=2), (X, X), (N, N)),
        (lambda *given: given[0] + given[1], (X, X), (N, N)),
        (lambda *given: given[0] + given[1], (X, X), ((N, N),)),
        (lambda *given: given[0] + 1, (X,), ((("n", None),),)),
    ],
)
def test_dynamic_shapes_are_given_one_by_one(fn, args, shapes):
    graph = ir.capture(fn, args, dynamic_shapes=shapes)
    assert str(graph.inputs[0].type) == "f32[n, 4]"


def test_arguments_by_name_follow():
    def fn(*given, shift):
        return given[0] + shift

    for shapes in ((N, N), ((N,), N)):
        graph = ir.capture(fn, (X,), {"shift": X}, dynamic_shapes=shapes)
        assert [str(v.type) for v in graph.inputs] == ["f32[n, 4]"] * 2
    graph = ir.capture(torch.add, (X, X), {"alpha": 2})
    assert next(n.args["alpha"] for n in graph.nodes if n.op == "aten::add") == 2


def test_a_builtin_tells_no_names_of_its_arguments():
    with pytest.raises(ir.CaptureError, match=r"names 'input'.*give a tuple with an entry for each argument"):
        ir.capture(torch.add, (X, X), dynamic_shapes={"input": N, "other": N})


def test_dynamic_sizes_of_an_argument_that_forward_does_not_name():
    class Model(torch.nn.Module):
        def forward(self, x, **others):
            return x + others["y"]

    x = torch.ones(3)
    with pytest.raises(ir.CaptureError, match=r"names 'y', .*forward takes it by \*\*kwargs, .* named parameter"):
        ir.capture(Model(), (x,), {"y": x}, dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    with pytest.raises(ir.CaptureError, match=r"names 'y', and the example has x$"):  # a key of an input is no argument
        ir.capture(lambda x: x["y"] + 1, ({"y": x},), dynamic_shapes={"y": {0: "n"}})
