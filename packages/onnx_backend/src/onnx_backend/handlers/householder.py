"""Householder's reflections as LAPACK keeps them: vectors below the diagonal, their factors beside; in float64."""

from __future__ import annotations

from ir.dims import minimum
from ir.types import DType
from onnx_backend.handlers.linalg import F64, at, column_sum, counted, mul, sub, swapped
from onnx_backend.registry import register as op


def reflected(h, a, factor, x, last_first):
    """H_1 ... H_k x for the k reflections in `a` (the first k if not `last_first`: H_k ... H_1 x)."""
    count = factor.type.shape[-1]
    column = counted(h, a.type.shape[-2])[1]
    factors = h.unsqueeze(factor, [factor.type.rank - 1])  # [..., 1, k]

    def step(i, x):
        k = sub(h, count - 1, i) if last_first else i
        below = h.emit("Where", h.emit("Greater", column, k), at(h, a, k, -1), h.const(0, a))
        v = h.emit("Where", h.emit("Equal", column, k), h.const(1, a), below)
        turned = mul(h, v, h.emit("MatMul", swapped(h, v), x))
        return [sub(h, x, mul(h, at(h, factors, k, -1), turned))]

    return h.loop(count, [x], step)[0]


def last_axis(h, x):
    """What a loop piled up on the first axis, along the last."""
    return h.transpose(x, [*range(1, x.type.rank), 0])


@op("aten::linalg_householder_product")
def linalg_householder_product(h, input, tau):
    """The first columns of the product of all reflections."""
    a, factor = h.cast(input, F64), h.cast(tau, F64)
    rows, columns = a.type.shape[-2:]
    row, column = counted(h, columns)[0], counted(h, rows)[1]
    start = h.expand(h.cast(h.emit("Equal", row, column), F64), a.type.shape)
    return h.cast(reflected(h, a, factor, start, last_first=True), h.out.dtype)


@op("aten::orgqr")
def orgqr(h, self, input2):
    return linalg_householder_product(h, self, input2)


@op("aten::ormqr")
def ormqr(h, self, input2, input3, left=True, transpose=False):
    """Q C, Q^T C, C Q or C Q^T; from the right as (Q^T C^T)^T."""
    a, factor, x = (h.cast(t, F64) for t in (self, input2, input3))
    if left:
        return h.cast(reflected(h, a, factor, x, last_first=not transpose), h.out.dtype)
    return h.cast(swapped(h, reflected(h, a, factor, swapped(h, x), last_first=transpose)), h.out.dtype)


@op("aten::geqrf")
def geqrf(h, self):
    """R on and above the diagonal, the reflections below it, and their factors."""
    a = h.cast(self, F64)
    rows, columns = a.type.shape[-2:]
    row, column = counted(h, columns)[0], counted(h, rows)[1]

    def step(k, a):
        this = at(h, a, k, -1)
        below = h.emit("Where", h.emit("Greater", column, k), this, h.const(0, a))
        rest, head = column_sum(h, mul(h, below, below)), at(h, this, k, -2)
        length = h.emit("Sqrt", h.emit("Add", rest, mul(h, head, head)))
        none = h.emit("Equal", rest, 0)
        signed = h.emit("Where", h.emit("Less", head, 0), length, h.emit("Neg", length))
        beta = h.emit("Where", none, head, signed)
        safe = h.emit("Where", none, h.const(1, a), beta)
        factor = h.emit("Where", none, h.const(0, a), h.emit("Div", sub(h, safe, head), safe))
        below = h.emit("Div", below, h.emit("Where", none, h.const(1, a), sub(h, head, safe)))
        here = h.emit("Equal", column, k)
        v = h.emit("Where", here, h.const(1, a), below)
        turned = sub(h, a, mul(h, mul(h, factor, v), h.emit("MatMul", swapped(h, v), a)))
        kept = h.emit("Where", h.emit("Less", column, k), this, h.emit("Where", here, beta, below))
        a = h.emit("Where", h.emit("Greater", row, k), turned, h.emit("Where", h.emit("Equal", row, k), kept, a))
        return [a, h.squeeze(factor, [factor.type.rank - 2, factor.type.rank - 1])]

    done, factors = h.loop(minimum(rows, columns), [a], step, stacked=1)
    return h.cast(done, h.out.dtype), h.cast(last_axis(h, factors), h.out.dtype)


TERMS = 18  # of the exponential's series: enough for float64 where no column sums to more than 1


@op("aten::matrix_exp", "aten::linalg_matrix_exp")
def matrix_exp(h, self):
    """Halved until small, summed by Horner's rule, squared as often (Moler and Van Loan 2003, method 3)."""
    if 0 in self.type.shape:
        return self
    x = h.cast(self, F64)
    largest = h.reduce("ReduceMax", column_sum(h, h.emit("Abs", x)))
    halvings = h.emit("Ceil", h.emit("Div", h.emit("Log", h.emit("Max", largest, 1)), h.emit("Log", h.const(2, F64))))
    x = h.emit("Div", x, h.emit("Pow", h.const(2, F64), halvings))
    size = x.type.shape[-1]
    row, column = counted(h, size)
    eye = h.expand(h.cast(h.emit("Equal", row, column), F64), x.type.shape)

    def term(i, total):
        order = h.cast(sub(h, TERMS, i), F64)
        return [h.emit("Add", eye, h.emit("Div", h.emit("MatMul", x, total), order))]

    total = h.loop(TERMS, [eye], term)[0]
    squared = h.loop(h.cast(halvings, DType.int64), [total], lambda i, t: [h.emit("MatMul", t, t)])[0]
    return h.cast(squared, h.out.dtype)
