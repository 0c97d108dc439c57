"""Shapes of intermediate results, for the ops whose shape follows from their inputs' shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir.dims import Dim
from ir.geometry import broadcast

Shape = tuple[Dim, ...]

BROADCASTING = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "Where", "Max", "Min", "Mean", "Sum", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift",
    "PRelu",
})  # fmt: skip
SAME = frozenset({
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu", "Clip",
    "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Hardmax", "Identity",
    "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softmax", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Trilu", "Dropout", "LRN",
    "InstanceNormalization", "GroupNormalization", "BatchNormalization", "EyeLike", "RandomNormalLike",
    "RandomUniformLike", "Bernoulli", "MeanVarianceNormalization", "QuantizeLinear", "DequantizeLinear",
    "RMSNormalization", "ReverseSequence", "RotaryEmbedding", "Swish",
})  # fmt: skip


def infer(op: str, shapes: Sequence[Shape | None], attributes: dict[str, Any]) -> Shape | None:
    """The shape of the first result, or None where it takes more than the inputs' shapes to know it."""
    if not shapes or shapes[0] is None:
        return None
    x = shapes[0]
    if op in SAME:
        return x
    if op in BROADCASTING:
        return broadcast(*(s for s in shapes if s is not None)) if None not in shapes else None
    if op == "Transpose":
        perm = attributes.get("perm") or list(range(len(x)))[::-1]
        return tuple(x[p] for p in perm)
    if op == "Shape":
        return (len(x[attributes.get("start", 0) : attributes.get("end", len(x))]),)
    if op == "Gather" and shapes[1] is not None:
        axis = attributes.get("axis", 0) % max(len(x), 1)
        return (*x[:axis], *shapes[1], *x[axis + 1 :])
    if op == "GatherElements":
        return shapes[1]
    if op == "MatMul" and shapes[1] is not None:
        return _matmul(x, shapes[1])
    return None


def _matmul(a: Shape, b: Shape) -> Shape:
    rows = a[-2:-1] if len(a) > 1 else ()
    columns = b[-1:] if len(b) > 1 else ()
    return (*broadcast(a[:-2], b[:-2]), *rows, *columns)
