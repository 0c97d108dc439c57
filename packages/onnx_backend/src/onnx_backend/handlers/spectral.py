"""Linear algebra by rotations and reflections: QR, and what rests on eigenvalues, in float64.

The signs of eigenvectors and singular vectors are free, here as in LAPACK; those of QR are LAPACK's.
"""

from __future__ import annotations

import functools

from ir import dims
from ir.dims import Expr, minimum
from ir.types import DType
from onnx_backend.handlers.linalg import F64, at, column_sum, counted, identity, mul, sub, swapped, triangle
from onnx_backend.registry import register as op


@op("aten::linalg_qr")
def linalg_qr(h, A, mode="reduced"):
    """Householder's reflections with LAPACK's signs."""
    a = h.cast(A, F64)
    rows, columns = a.type.shape[-2:]
    size = minimum(rows, columns)
    column = counted(h, rows)[1]
    start = h.expand(identity(h, rows), (*a.type.shape[:-2], rows, rows))

    def step(k, q, r):
        this = at(h, r, k, -1)
        below = h.emit("Where", h.emit("Greater", column, k), this, h.const(0, r))
        rest = column_sum(h, mul(h, below, below))
        head = at(h, this, k, -2)
        length = h.emit("Sqrt", h.emit("Add", rest, mul(h, head, head)))
        away = h.emit("Where", h.emit("Less", head, 0), sub(h, head, length), h.emit("Add", head, length))
        v = h.emit("Where", h.emit("Equal", column, k), away, below)
        flat = h.emit("Equal", rest, 0)  # nothing to reflect
        norm = h.emit("Where", flat, h.const(1, r), column_sum(h, mul(h, v, v)))
        scale = h.emit("Where", flat, h.const(0, r), h.emit("Div", h.const(2, r), norm))
        turned = mul(h, v, scale)
        row = swapped(h, v)
        return [sub(h, q, h.emit("MatMul", h.emit("MatMul", q, turned), row)),
                sub(h, r, h.emit("MatMul", turned, h.emit("MatMul", row, r)))]  # fmt: skip

    q, r = h.loop(size, [start, a], step)
    r = triangle(h, r, True)
    if mode != "complete":
        q = h.slice(q, q.type.rank - 1, 0, size, size=size)
        r = h.slice(r, r.type.rank - 2, 0, size, size=size)
    empty = h.full((0,), 0, h.out.dtype)
    return empty if mode == "r" else h.cast(q, h.out.dtype), h.cast(r, h.out.dtype)


def symmetric(h, x, upper=False):
    """The symmetric matrices that have this triangle."""
    half = triangle(h, x, upper, True)
    return h.emit("Add", h.emit("Add", half, swapped(h, half)), mul(h, x, identity(h, x.type.shape[-1])))


def unless_empty(fn):
    """Results without elements need no iteration, which in turn needs elements."""

    @functools.wraps(fn)
    def handler(h, *args, **kwargs):
        if all(0 in t.shape for t in h.results):
            return [h.full(t.shape, 0, t.dtype) for t in h.results]
        return fn(h, *args, **kwargs)

    return handler


SWEEPS = 8  # Jacobi converges quadratically: 6 are enough for float64 at any size met so far


def jacobi(h, a):
    """Eigenvalues (ascending) and eigenvectors of symmetric matrices, by rotations of each pair of axes in turn."""
    size = h.static(a.type.shape[-1], "the size of the matrix")
    batch = a.type.shape[:-2]
    pairs = [(p, q) for p in range(size) for q in range(p + 1, size)] * SWEEPS
    eye = h.expand(identity(h, size), a.type.shape)
    row, column = counted(h, size)
    table = h.const(pairs or [(0, 0)], DType.int64)

    def step(i, a, v):
        pair = h.emit("Gather", table, i, axis=0)
        p, q = (h.emit("Gather", pair, k, axis=0) for k in (0, 1))
        left = at(h, a, p, -2)
        app, apq, aqq = at(h, left, p, -1), at(h, left, q, -1), at(h, at(h, a, q, -2), q, -1)
        done = h.emit("Equal", apq, 0)
        ratio = h.emit("Div", sub(h, aqq, app), mul(h, h.emit("Where", done, h.const(1, a), apq), 2))
        tangent = h.emit("Add", h.emit("Abs", ratio), h.emit("Sqrt", h.emit("Add", mul(h, ratio, ratio), 1)))
        sign = h.emit("Where", h.emit("Less", ratio, 0), h.const(-1, a), h.const(1, a))
        tangent = h.emit("Where", done, h.const(0, a), h.emit("Div", sign, tangent))
        cosine = h.emit("Reciprocal", h.emit("Sqrt", h.emit("Add", mul(h, tangent, tangent), 1)))
        sine = mul(h, tangent, cosine)

        def put(x, r, c, value):
            here = h.emit("And", h.emit("Equal", column, r), h.emit("Equal", row, c))
            return h.emit("Where", here, value, x)

        turn = put(put(put(put(eye, p, p, cosine), q, q, cosine), p, q, sine), q, p, h.emit("Neg", sine))
        return [h.emit("MatMul", h.emit("MatMul", swapped(h, turn), a), turn), h.emit("MatMul", v, turn)]

    a, v = h.loop(len(pairs), [a, eye], step) if pairs else (a, eye)
    diagonal = h.reduce("ReduceSum", mul(h, a, identity(h, size)), [a.type.rank - 1])
    values, order = h.emit("TopK", diagonal, [size], largest=False, outputs=2, shape=(*batch, size))
    order = h.expand(h.unsqueeze(order, [order.type.rank - 1]), v.type.shape)
    return values, h.emit("GatherElements", v, order, axis=v.type.rank - 1)


@op("aten::_linalg_eigh", "aten::linalg_eigh")
@unless_empty
def linalg_eigh(h, self=None, A=None, UPLO="L", compute_v=True):
    x = h.cast(A if self is None else self, F64)
    values, vectors = jacobi(h, symmetric(h, x, UPLO.upper() == "U"))
    return [h.cast(t, h.out.dtype) for t in (values, vectors)]


@op("aten::linalg_eigvalsh")
@unless_empty
def linalg_eigvalsh(h, self, UPLO="L"):
    return linalg_eigh(h, self, None, UPLO)[0]


def singular(h, x):
    """U, S, V of A = U S V^T, reduced, from the eigenvectors of the smaller of A^T A and A A^T."""
    rows, columns = x.type.shape[-2:]
    if isinstance(rows, int) and (isinstance(columns, Expr) or rows < columns):
        v, s, u = singular(h, swapped(h, x))
        return u, s, v
    values, v = jacobi(h, h.emit("MatMul", swapped(h, x), x))
    size = values.type.shape[-1]
    back = list(range(size))[::-1]
    values = h.emit("Gather", values, back, axis=values.type.rank - 1)
    v = h.emit("Gather", v, back, axis=v.type.rank - 1)
    image = h.emit("MatMul", x, v)
    s = h.emit("Sqrt", h.reduce("ReduceSum", mul(h, image, image), [image.type.rank - 2]))
    scale = h.unsqueeze(s, [s.type.rank - 1])
    safe = h.emit("Where", h.emit("Equal", scale, 0), h.const(1, s), scale)
    parts = h.emit("Div", image, safe), s, v
    if isinstance(rows, int):
        return parts
    least = minimum(rows, columns)  # beyond these the singular values are 0
    return tuple(h.slice(t, t.type.rank - 1, 0, least, size=least) for t in parts)


@op("aten::_linalg_svd", "aten::linalg_svd")
@unless_empty
def linalg_svd(h, A, full_matrices=False, compute_uv=True, driver=None):
    rows, columns = A.type.shape[-2:]
    if compute_uv and full_matrices and rows != columns:
        h.refuse("full_matrices=True of matrices that are not square")
    u, s, v = singular(h, h.cast(A, F64))
    return [h.cast(x, h.out.dtype) for x in (u, s, swapped(h, v))]


@op("aten::linalg_svdvals")
@unless_empty
def linalg_svdvals(h, A, driver=None):
    return h.cast(singular(h, h.cast(A, F64))[1], h.out.dtype)


def _times(h, number, size):
    return number * size if isinstance(size, int) else h.emit("Mul", h.tensor(size, F64), number)


@op("aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_pinv.atol_rtol_float", "aten::pinverse")
@unless_empty
def linalg_pinv(h, self, atol=None, rtol=None, hermitian=False, rcond=None):
    x = h.cast(self, F64)
    u, s, v = singular(h, symmetric(h, x) if hermitian else x)
    scale = h.reduce("ReduceMax", s, [s.type.rank - 1], True)
    precision = {F64: 2.0**-52}.get(self.type.dtype, 2.0**-23)
    ratio = rcond if rcond is not None else rtol
    if ratio is None:
        ratio = (
            0.0
            if atol is not None and not h.is_value(atol) and atol > 0
            else _times(h, precision, dims.maximum(*x.type.shape[-2:]))
        )
    ratio, floor = (h.tensor(0.0 if t is None else t, F64) for t in (ratio, atol))
    ratio, floor = (h.unsqueeze(t, [t.type.rank]) if t.type.rank else t for t in (ratio, floor))
    cut = h.emit("LessOrEqual", s, h.emit("Max", floor, mul(h, scale, ratio)))
    turned = h.emit("Where", cut, h.const(0, s), h.emit("Reciprocal", s))
    scaled = mul(h, v, h.unsqueeze(turned, [s.type.rank - 1]))
    return h.cast(h.emit("MatMul", scaled, swapped(h, u)), h.out.dtype)
