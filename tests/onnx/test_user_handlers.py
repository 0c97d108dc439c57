"""Handlers of users: what they return is held to torch's shape as far as ONNX's own shape inference tells."""

from __future__ import annotations

import pytest
import torch

import ir

X = torch.randn(3, 4)
WRONG = {
    "reduced": (lambda h, self: h.emit("ReduceSum", self, keepdims=0), r"\[\]"),
    "reduced_then_negated": (lambda h, self: h.emit("Neg", h.emit("ReduceSum", self, [0], keepdims=0)), r"\[4\]"),
    "joined": (lambda h, self: h.emit("Concat", self, self, axis=1), r"\[(3|b), 8\]"),
    "of_another_shape": (lambda h, self: h.emit("Reshape", self, [4, 3]), r"\[4, 3\]"),
    "unsqueezed": (lambda h, self: h.emit("Unsqueeze", self, [0]), r"\[1, (3|b), 4\]"),
}
RIGHT = {
    "by_rows": lambda h, self: h.emit("Concat", h.emit("Neg", self), axis=0),
    "and_back": lambda h, self: h.emit("Squeeze", h.emit("Unsqueeze", h.emit("Neg", self), [0]), [0]),
    "by_its_own_shape": lambda h, self: h.emit("Reshape", h.emit("Neg", self), h.emit("Shape", self)),
    "of_unknown_rank": lambda h, self: h.emit(
        "Reshape", h.emit("Neg", self), h.emit("Cast", [-1.0, 4.0], to=ir.DType.int64)
    ),
    "of_another_domain": lambda h, self: h.emit(
        "com.microsoft::FusedMatMul", self, h.const((-torch.eye(4)).tolist(), ir.DType.float32), dtype=self.type.dtype
    ),
}


@pytest.mark.parametrize("sizes", [None, ({0: "b"},)])
@pytest.mark.parametrize("name", WRONG)
def test_a_result_of_another_shape_is_a_defect(name, sizes):
    handler, shape = WRONG[name]
    told = rf"handler of aten::neg at .*test_user_handlers.py:\d+ returned the shape {shape} for %neg, which has the "
    with pytest.raises(ir.ExportError, match=told + r"shape \[(3|b), 4\] in torch"):
        export(handler, sizes)


@pytest.mark.parametrize("sizes", [None, ({0: "b"},)])
@pytest.mark.parametrize("name", RIGHT)
def test_a_result_of_this_shape_or_an_unknown_one_is_taken(name, sizes):
    torch.testing.assert_close(export(RIGHT[name], sizes)(X), 1 - X)


def export(handler, sizes):
    return ir.export(
        lambda x: 1 + torch.neg(x), (X,), target="onnx", dynamic_shapes=sizes, handlers={"aten::neg": handler}
    )
