"""Linear algebra: elimination, Cholesky, Householder and Jacobi as loops over whole batches, in float64.

ONNX has an op for the determinant only. Each loop runs over the columns (or pairs of them), so the number of nodes
does not depend on the size of the matrix.
"""

from __future__ import annotations

import functools
import math

from ir.dims import minimum
from ir.types import DType
from onnx_backend.registry import register as op

F64 = DType.float64


def swapped(h, x):
    """The matrices transposed."""
    rank = x.type.rank
    return h.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def mul(h, a, b):
    return h.emit("Mul", a, b)


def sub(h, a, b):
    return h.emit("Sub", a, b)


def column_sum(h, x):
    return h.reduce("ReduceSum", x, [x.type.rank - 2], True)


def counted(h, size):
    """0, 1, ... as a row and as a column."""
    row = h.range(0, size, size=size)
    return row, h.unsqueeze(row, [1])


def identity(h, size):
    row, column = counted(h, size)
    return h.cast(h.emit("Equal", row, column), F64)


def triangle(h, x, upper, strict=False):
    """The matrices with zeros beyond a triangle."""
    rows, columns = x.type.shape[-2:]
    row, column = counted(h, columns)[0], counted(h, rows)[1]
    kept = h.emit(("Greater" if upper else "Less") + ("" if strict else "OrEqual"), row, column)
    return h.emit("Where", kept, x, h.const(0, x))


def at(h, x, i, axis):
    """The i-th row (axis -2) or column (axis -1) with its axis kept."""
    return h.emit("Gather", x, h.reshape(i, [1]), axis=x.type.rank + axis)


def eliminated(h, x, size, jordan):
    """Gauss' elimination of `size` columns with row exchanges.

    With `jordan` above the diagonal too and with pivots divided by: `[A | B]` becomes `[1 | A^-1 B]`. Without, the
    factors stay below the diagonal. Gives the matrices, the pivots, and each step's row of exchange.
    """
    rows, columns = x.type.shape[-2:]
    batch = x.type.shape[:-2]
    column = counted(h, rows)[1]

    def step(k, a):
        this = at(h, a, k, -1)
        open_ = h.emit("GreaterOrEqual", column, k)
        height = h.emit("Where", open_, h.emit("Abs", this), h.const(-1, a))
        best = h.emit("ArgMax", height, axis=-2, keepdims=1, shape=(*batch, 1, 1))
        order = h.emit("Where", h.emit("Equal", column, best), k, column)
        order = h.emit("Where", h.emit("Equal", column, k), best, order)
        a = h.emit("GatherElements", a, h.expand(order, (*batch, rows, columns)), axis=a.type.rank - 2)
        first, this = at(h, a, k, -2), at(h, a, k, -1)
        pivot = at(h, first, k, -1)
        here = h.emit("Equal", column, k)
        if jordan:
            first = h.emit("Div", first, pivot)
            a = h.emit("Where", here, first, sub(h, a, mul(h, this, first)))
        else:
            safe = h.emit("Where", h.emit("Equal", pivot, 0), h.const(1, pivot), pivot)
            below = h.emit("Greater", column, k)
            factor = h.emit("Where", below, h.emit("Div", this, safe), h.const(0, a))
            places = h.range(0, columns, size=columns)
            right = h.emit("Where", h.emit("Greater", places, k), first, h.const(0, a))
            mark = h.emit("And", below, h.emit("Equal", places, k))
            a = h.emit("Where", mark, factor, sub(h, a, mul(h, factor, right)))
        return [a, h.reshape(pivot, batch), h.reshape(best, batch)]

    return h.loop(size, [x], step, stacked=2)


def last_axis(h, x):
    """What a loop piled up on the first axis, along the last."""
    return h.transpose(x, [*range(1, x.type.rank), 0])


def solved(h, a, b):
    """A^-1 B of float64 matrices; B may lack A's batch axes."""
    size = a.type.shape[-1]
    batch = a.type.shape[:-2] if len(a.type.shape) >= len(b.type.shape) else b.type.shape[:-2]
    a, b = (h.expand(x, (*batch, *x.type.shape[-2:])) for x in (a, b))
    both = h.concat([a, b], a.type.rank - 1)
    done = eliminated(h, both, size, True)[0]
    return h.slice(done, done.type.rank - 1, size, 2**31 - 1, size=b.type.shape[-1])


def no_error(h, batch):
    return h.full(batch, 0, DType.int32)


@op("aten::linalg_inv_ex", "aten::linalg_inv", "aten::inverse")
def linalg_inv(h, self=None, A=None, check_errors=False):
    x = h.cast(A if self is None else self, F64)
    done = h.cast(solved(h, x, identity(h, x.type.shape[-1])), h.out.dtype)
    return [done, no_error(h, x.type.shape[:-2])][: len(h.results)]


@op("aten::_linalg_solve_ex", "aten::linalg_solve_ex", "aten::linalg_solve")
def linalg_solve(h, A, B, left=True, check_errors=False):
    a, b = h.cast(A, F64), h.cast(B, F64)
    vector = b.type.rank == 1 or (b.type.rank == a.type.rank - 1 and b.type.shape == a.type.shape[:-1])
    b = h.unsqueeze(b, [b.type.rank]) if vector else b
    done = solved(h, a, b) if left else swapped(h, solved(h, swapped(h, a), swapped(h, b)))
    done = h.squeeze(done, [done.type.rank - 1]) if vector else done
    done = h.cast(done, h.out.dtype)
    return [done, no_error(h, h.results[1].shape)] if len(h.results) == 2 else [done, None, None, None][: len(h.results)]


@op("aten::linalg_det", "aten::_linalg_det", "aten::det")
def linalg_det(h, self=None, A=None):
    x = A if self is None else self
    return [h.emit("Det", x, shape=h.out.shape), None, None][: len(h.results)]


def sign_and_log(h, x):
    """The determinant's sign and the logarithm of its magnitude, from the pivots and the exchanges of rows."""
    size = x.type.shape[-1]
    _, pivots, places = eliminated(h, h.cast(x, F64), size, False)
    steps = h.reshape(h.range(0, size, size=size), [size, *[1] * (pivots.type.rank - 1)])
    turned = h.emit("Where", h.emit("Equal", places, steps), h.const(1, pivots), h.const(-1, pivots))
    sign = h.reduce("ReduceProd", mul(h, turned, h.emit("Sign", pivots)), [0])
    return sign, h.reduce("ReduceSum", h.emit("Log", h.emit("Abs", pivots)), [0])


@op("aten::linalg_slogdet", "aten::_linalg_slogdet", "aten::slogdet")
def linalg_slogdet(h, self=None, A=None):
    parts = sign_and_log(h, A if self is None else self)
    return [*(h.cast(x, h.out.dtype) for x in parts), None, None][: len(h.results)]


@op("aten::logdet")
def logdet(h, self):
    sign, log = sign_and_log(h, self)
    return h.cast(h.emit("Where", h.emit("Less", sign, 0), h.const(math.nan, log), log), h.out.dtype)


# -- LU ----------------------------------------------------------------------------------------------------------------


@op("aten::linalg_lu_factor_ex", "aten::linalg_lu_factor", "aten::_lu_with_info")
def linalg_lu_factor(h, self=None, A=None, pivot=True, check_errors=False):
    if not pivot:
        h.refuse("pivot=False")
    x = h.cast(A if self is None else self, F64)
    lu, _, places = eliminated(h, x, minimum(*x.type.shape[-2:]), False)
    places = h.cast(h.emit("Add", last_axis(h, places), 1), DType.int32)  # counted from 1, as in LAPACK
    return [h.cast(lu, h.out.dtype), places, no_error(h, x.type.shape[:-2])][: len(h.results)]


def permutation(h, places, rows):
    """The matrix P with A = P L U, from each step's row of exchange (counted from 0)."""
    steps = places.type.shape[-1]
    column = counted(h, rows)[1]
    batch = places.type.shape[:-1]
    start = h.expand(identity(h, rows), (*batch, rows, rows))

    def step(k, p):
        best = h.unsqueeze(at(h, places, k, -1), [places.type.rank])
        order = h.emit("Where", h.emit("Equal", column, best), k, column)
        order = h.emit("Where", h.emit("Equal", column, k), best, order)
        return [h.emit("GatherElements", p, h.expand(order, (*batch, rows, rows)), axis=p.type.rank - 2)]

    return swapped(h, h.loop(steps, [start], step)[0])


def lu_parts(h, lu):
    """L with ones on its diagonal, and U."""
    rows, columns = lu.type.shape[-2:]
    size = minimum(rows, columns)
    left = triangle(h, h.slice(lu, lu.type.rank - 1, 0, size, size=size), False, True)
    row, column = counted(h, size)[0], counted(h, rows)[1]
    left = h.emit("Where", h.emit("Equal", row, column), h.const(1, left), left)
    return left, triangle(h, h.slice(lu, lu.type.rank - 2, 0, size, size=size), True)


@op("aten::lu_unpack")
def lu_unpack(h, LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    places = sub(h, h.cast(LU_pivots, DType.int64), 1)
    p = h.cast(permutation(h, places, LU_data.type.shape[-2]), LU_data.type.dtype) if unpack_pivots else None
    return (p, *(lu_parts(h, LU_data) if unpack_data else (None, None)))


@op("aten::linalg_lu")
def linalg_lu(h, A, pivot=True):
    if not pivot:
        h.refuse("pivot=False")
    lu, _, places = eliminated(h, h.cast(A, F64), minimum(*A.type.shape[-2:]), False)
    parts = [permutation(h, last_axis(h, places), A.type.shape[-2]), *lu_parts(h, lu)]
    return [h.cast(x, h.out.dtype) for x in parts]


@op("aten::linalg_lu_solve")
def linalg_lu_solve(h, LU, pivots, B, left=True, adjoint=False):
    p = permutation(h, sub(h, h.cast(pivots, DType.int64), 1), LU.type.shape[-2])
    lower, upper = lu_parts(h, h.cast(LU, F64))
    a = h.emit("MatMul", p, h.emit("MatMul", lower, upper))
    a, b = swapped(h, a) if adjoint else a, h.cast(B, F64)
    return h.cast(solved(h, a, b) if left else swapped(h, solved(h, swapped(h, a), swapped(h, b))), h.out.dtype)


@op("aten::lu_solve")
def lu_solve(h, self, LU_data, LU_pivots):
    return linalg_lu_solve(h, LU_data, LU_pivots, self)


# -- triangles ---------------------------------------------------------------------------------------------------------


@op("aten::linalg_solve_triangular")
def linalg_solve_triangular(h, self, B, upper, left=True, unitriangular=False):
    a = triangle(h, h.cast(self, F64), upper, unitriangular)
    a = h.emit("Add", a, identity(h, a.type.shape[-1])) if unitriangular else a
    b = h.cast(B, F64)
    done = solved(h, a, b) if left else swapped(h, solved(h, swapped(h, a), swapped(h, b)))
    return h.cast(done, h.out.dtype)


@op("aten::triangular_solve")
def triangular_solve(h, self, A, upper=True, transpose=False, unitriangular=False):
    a = triangle(h, h.cast(A, F64), upper, unitriangular)
    a = h.emit("Add", a, identity(h, a.type.shape[-1])) if unitriangular else a
    return h.cast(solved(h, swapped(h, a) if transpose else a, h.cast(self, F64)), h.out.dtype), A


def cholesky_factor(h, x):
    """L with L L^T = x by outer products; only the lower triangle of x counts."""
    size = x.type.shape[-1]
    row, column = counted(h, size)

    def step(k, a, lower):
        this = h.emit("Where", h.emit("GreaterOrEqual", column, k), at(h, a, k, -1), h.const(0, a))
        this = h.emit("Div", this, h.emit("Sqrt", at(h, this, k, -2)))
        lower = h.emit("Where", h.emit("Equal", row, k), this, lower)
        return [sub(h, a, h.emit("MatMul", this, swapped(h, this))), lower]

    return h.loop(size, [x, h.full(x.type.shape, 0, F64)], step)[1]


@op("aten::linalg_cholesky_ex", "aten::linalg_cholesky", "aten::cholesky")
def linalg_cholesky(h, self, upper=False, check_errors=False):
    """A matrix that is not positive definite gives nan, where torch raises."""
    x = h.cast(self, F64)
    x = swapped(h, x) if upper and h.node.op == "aten::cholesky" else x
    lower = cholesky_factor(h, x)
    done = h.cast(swapped(h, lower) if upper else lower, h.out.dtype)
    return [done, no_error(h, x.type.shape[:-2])][: len(h.results)]


def squared(h, x, upper):
    """The matrix that has this Cholesky factor."""
    factor = triangle(h, h.cast(x, F64), upper)
    factor = swapped(h, factor) if upper else factor
    return h.emit("MatMul", factor, swapped(h, factor))


@op("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def cholesky_solve(h, self, input2=None, A=None, upper=False):
    return h.cast(solved(h, squared(h, input2 if A is None else A, upper), h.cast(self, F64)), h.out.dtype)


@op("aten::cholesky_inverse")
def cholesky_inverse(h, self, upper=False):
    return h.cast(solved(h, squared(h, self, upper), identity(h, self.type.shape[-1])), h.out.dtype)


# -- orthogonal --------------------------------------------------------------------------------------------------------


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
    if rows < columns:
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
    return h.emit("Div", image, safe), s, v


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


@op("aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_pinv.atol_rtol_float", "aten::pinverse")
@unless_empty
def linalg_pinv(h, self, atol=None, rtol=None, hermitian=False, rcond=None):
    x = h.cast(self, F64)
    u, s, v = singular(h, symmetric(h, x) if hermitian else x)
    scale = h.reduce("ReduceMax", s, [s.type.rank - 1], True)
    precision = {F64: 2.0**-52}.get(self.type.dtype, 2.0**-23)
    ratio = rcond if rcond is not None else rtol
    if ratio is None:
        ratio = 0.0 if atol is not None and not h.is_value(atol) and atol > 0 else precision * max(x.type.shape[-2:])
    ratio, floor = (h.tensor(0.0 if t is None else t, F64) for t in (ratio, atol))
    ratio, floor = (h.unsqueeze(t, [t.type.rank]) if t.type.rank else t for t in (ratio, floor))
    cut = h.emit("LessOrEqual", s, h.emit("Max", floor, mul(h, scale, ratio)))
    turned = h.emit("Where", cut, h.const(0, s), h.emit("Reciprocal", s))
    scaled = mul(h, v, h.unsqueeze(turned, [s.type.rank - 1]))
    return h.cast(h.emit("MatMul", scaled, swapped(h, u)), h.out.dtype)
