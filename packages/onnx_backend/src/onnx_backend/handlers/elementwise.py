"""Element-wise math, activations, comparisons and logic."""

from __future__ import annotations

from onnx_backend.registry import register as op
from onnx_backend.registry import rows

rows({"relu": "Relu", "sigmoid": "Sigmoid", "exp": "Exp", "tanh": "Tanh", "sqrt": "Sqrt", "neg": "Neg"})


@op("aten::add")
def add(h, self, other, alpha=1):
    other = h.tensor(other, h.out.dtype)
    return h.emit("Add", h.tensor(self, h.out.dtype), other if alpha == 1 else h.emit("Mul", other, alpha))


@op("aten::mul")
def mul(h, self, other):
    return h.emit("Mul", h.tensor(self, h.out.dtype), h.tensor(other, h.out.dtype))
