"""Linear algebra by elimination: solve, inverse, determinants, LU, Cholesky, triangular systems.

ONNX has an op for the determinant only. The rest are loops over the columns of whole batches, in float64: the number of
nodes does not depend on the size of the matrix.
"""

from __future__ import annotations

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
    return solution(h, a, b)[0]


def solution(h, a, b):
    """The same, and the pivots that it divided by, step by step on the first axis."""
    size = a.type.shape[-1]
    batch = a.type.shape[:-2] if len(a.type.shape) >= len(b.type.shape) else b.type.shape[:-2]
    a, b = (h.expand(x, (*batch, *x.type.shape[-2:])) for x in (a, b))
    both = h.concat([a, b], a.type.rank - 1)
    done, pivots, _ = eliminated(h, both, size, True)
    return h.slice(done, done.type.rank - 1, size, 2**31 - 1, size=b.type.shape[-1]), pivots


def first_failure(h, good, batch):
    """LAPACK's info: the first step, counted from 1, that is not good; 0 if all are. Steps lie on the first axis."""
    if good.type.shape[0] == 0 or not h.wanted(len(h.results) - 1):
        return h.full(batch, 0, DType.int32)
    bad = h.cast(h.emit("Not", good), DType.int32)
    step = h.emit("Add", h.emit("ArgMax", bad, axis=0, keepdims=0, shape=batch), 1)
    return h.emit("Mul", h.cast(step, DType.int32), h.reduce("ReduceMax", bad, [0]))


def singular_step(h, pivots, batch):
    return first_failure(h, h.emit("Not", h.emit("Equal", pivots, 0)), batch)


@op("aten::linalg_inv_ex", "aten::linalg_inv", "aten::inverse")
def linalg_inv(h, self=None, A=None, check_errors=False):
    x = h.cast(A if self is None else self, F64)
    done, pivots = solution(h, x, identity(h, x.type.shape[-1]))
    return [h.cast(done, h.out.dtype), singular_step(h, pivots, x.type.shape[:-2])][: len(h.results)]


@op("aten::_linalg_solve_ex", "aten::linalg_solve_ex", "aten::linalg_solve")
def linalg_solve(h, A, B, left=True, check_errors=False):
    a, b = h.cast(A, F64), h.cast(B, F64)
    vector = b.type.rank == 1 or (b.type.rank == a.type.rank - 1 and b.type.shape == a.type.shape[:-1])
    b = h.unsqueeze(b, [b.type.rank]) if vector else b
    done, pivots = solution(h, *((a, b) if left else (swapped(h, a), swapped(h, b))))
    done = done if left else swapped(h, done)
    done = h.squeeze(done, [done.type.rank - 1]) if vector else done
    done = h.cast(done, h.out.dtype)
    if len(h.results) == 1:
        return done
    info = singular_step(h, pivots, h.results[-1].shape)
    return [done, info] if len(h.results) == 2 else [done, None, None, info]


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
    lu, pivots, places = eliminated(h, x, minimum(*x.type.shape[-2:]), False)
    places = h.cast(h.emit("Add", last_axis(h, places), 1), DType.int32)  # counted from 1, as in LAPACK
    info = singular_step(h, pivots, x.type.shape[:-2])
    return [h.cast(lu, h.out.dtype), places, info][: len(h.results)]


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
    diagonal = h.emit("Einsum", lower, equation="...ii->...i", shape=x.type.shape[:-1])
    positive = h.emit("Greater", h.transpose(diagonal, [diagonal.type.rank - 1, *range(diagonal.type.rank - 1)]), 0)
    return [done, first_failure(h, positive, x.type.shape[:-2])][: len(h.results)]


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
