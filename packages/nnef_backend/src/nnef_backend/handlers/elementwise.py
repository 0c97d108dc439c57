"""Element-wise math, activations, comparisons and logic."""

from __future__ import annotations

from nnef_backend.registry import register as op
from nnef_backend.registry import rows

rows({"relu": "relu", "sigmoid": "sigmoid", "exp": "exp", "tanh": "tanh", "sqrt": "sqrt"})


@op("aten::mul")
def mul(h, self, other):
    return h.emit("mul", self, other)


@op("aten::add")
def add(h, self, other, alpha=1):
    return h.emit("add", self, other if alpha == 1 else h.emit("mul", other, alpha))
