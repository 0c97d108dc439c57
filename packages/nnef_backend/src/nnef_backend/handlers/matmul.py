"""Products of matrices."""

from __future__ import annotations

import re

from ir.handlers.shape import diagonal
from ir.types import DType
from nnef_backend.building.hiding import as_laid_out
from nnef_backend.building.operators import OPERATORS, through
from nnef_backend.registry import register as op
from nnef_backend.registry import rows


@op("aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot")
def matmul(h, self, mat2=None, other=None, vec=None, tensor=None):
    x, y = self, next(v for v in (mat2, other, vec, tensor) if v is not None)
    columns, lines = x.type.rank == 1, y.type.rank == 1
    x = h.unsqueeze(x, [0]) if columns else x
    y = h.unsqueeze(y, [1]) if lines else y
    made = _product(h, x, y)
    rank = made.type.rank
    return h.squeeze(made, [a for a, gone in ((rank - 2, columns), (rank - 1, lines)) if gone])


def _of_one_matrix(h, x, y, many):
    """The product of matrices with one that all of them meet, which goes without its axes of size 1."""
    x, y = (v if v is many else h.squeeze(v, [*range(v.type.rank - 2)]) for v in (x, y))
    batch = "abcdefg"[: many.type.rank - 2]
    terms = (f"{batch}mk", "kn") if many is x else ("mk", f"{batch}kn")
    shape = (*many.type.shape[:-2], x.type.shape[-2], y.type.shape[-1])
    expr = f"{','.join(terms)}->{batch}mn"
    return h.emit("tract_core_einsum", [x, y], expr=expr, acc=DType.float32, shape=shape)


def _product(h, x, y):
    """A product of matrices of rank 2 and above; what tract's kernels lack is multiplied and summed."""
    many = [v for v in (x, y) if {*v.type.shape[:-2]} - {1}]
    if len(many) == 1:  # tract fails to move a reshape of these past an axis of size 1 in the other
        if (
            x.type.dtype is DType.float32
            and h.has("tract_core_einsum")
            and many[0].type.rank == max(x.type.rank, y.type.rank)
        ):
            return _of_one_matrix(h, x, y, many[0])
        x, y = (as_laid_out(h, v) if v is many[0] else v for v in (x, y))
    x, y = h.align(x, y)
    rank = x.type.rank
    kernel = through(OPERATORS["matmul"], x.type.dtype) is not None
    if kernel and h.target.tract and {*x.type.shape[:-1], *y.type.shape[:-2], y.type.shape[-1]} == {1}:
        # of two vectors: tract merges the axes that they were reshaped from, and then misses one of the result's
        terms = h.emit("mul", h.floating(x), h.floating(h.transpose(y, [*range(rank - 2), rank - 1, rank - 2])))
        return h.cast(h.reduce("sum_reduce", terms, rank - 1, keepdim=True), x.type.dtype)
    if kernel:
        return h.emit("matmul", x, y)
    # i64: tract has no kernel and would abort
    terms = h.emit("mul", h.unsqueeze(x, [rank]), h.unsqueeze(y, [rank - 2]))
    return h.reduce("sum_reduce", terms, rank - 1)


@op("aten::linear")
def linear(h, input, weight, bias=None):
    if weight.type.rank == 1:
        made = matmul(h, input, weight)
        return made if bias is None else h.emit("add", made, bias)
    x = h.unsqueeze(input, [0]) if input.type.rank == 1 else input
    x = as_laid_out(h, x) if weight.packed else x
    if through(OPERATORS["matmul"], x.type.dtype) is None:
        made = _product(h, x, h.transpose(weight, [1, 0]))
    elif x.type.rank > 2 and (x.type.dtype is DType.float32 or weight.packed) and h.has("tract_core_einsum"):
        # an axis put into the weight costs nothing, but tract fails to move a reshape of the rows past it
        rows = "abcdefg"[: x.type.rank - 1]
        shape = (*x.type.shape[:-1], weight.type.shape[0])
        made = h.emit("tract_core_einsum", [x, weight], expr=f"{rows}k,nk->{rows}n", acc=x.type.dtype, shape=shape)
    else:
        made = h.emit("matmul", *h.align(x, weight), transposeB=True)
    made = made if bias is None else h.emit("add", made, bias)
    return h.squeeze(made, [0]) if input.type.rank == 1 else made


@op("aten::addmm", "aten::addmv", "aten::addbmm", "aten::baddbmm", "aten::addr")
def addmm(h, self, mat1=None, mat2=None, mat=None, vec=None, batch1=None, batch2=None, vec1=None, vec2=None, beta=1,
          alpha=1):  # fmt: skip
    if h.node.op == "aten::addr":
        made = h.emit("mul", h.unsqueeze(vec1, [1]), vec2)
    else:
        x, y = ((mat1, mat2), (mat, vec), (batch1, batch2))[[mat1, mat, batch1].index(_first(mat1, mat, batch1))]
        made = matmul(h, x, y)
    if h.node.op == "aten::addbmm":
        made = h.reduce("sum_reduce", made, 0)
    made = made if alpha == 1 else h.emit("mul", made, alpha)
    if beta == 0:  # torch does not read it then, be it NaN
        return made
    return h.emit("add", made, self if beta == 1 else h.emit("mul", self, beta))


def _first(*xs):
    return next(x for x in xs if x is not None)


@op("aten::outer", "aten::ger")
def outer(h, self, vec2):
    return h.emit("mul", h.unsqueeze(h.cast(self, h.out.dtype), [1]), h.cast(vec2, h.out.dtype))


rows({
    "vdot": lambda h, self, other: matmul(h, self, other),
})  # fmt: skip


@op("aten::trace")
def trace(h, self):
    lines, columns = self.type.shape
    diagonal = h.emit("eq", h.unsqueeze(h.positions(lines), [1]), h.positions(columns))
    return h.reduce("sum_reduce", h.emit("select", diagonal, h.cast(self, h.out.dtype), 0), None)


@op("aten::bilinear")
def bilinear(h, input1, input2, weight, bias=None):
    batch = "ABCDEFGH"[: input1.type.rank - 1]
    terms = [f"{batch}i", "oij", f"{batch}j"]
    made = h.contract([input1, weight, input2], terms, f"{batch}o", h.out.shape)
    return made if bias is None else h.emit("add", made, bias)


@op("aten::einsum")
def einsum(h, equation, tensors, path=None):
    terms, result = _terms(equation.replace(" ", ""), [t.type.rank for t in tensors])
    xs, terms = map(list, zip(*(_diagonals(h, x, t) for x, t in zip(tensors, terms, strict=True)), strict=True))
    xs, terms = _without_broadcasts(h, xs, terms)
    for i, term in enumerate(terms):
        needed = {*result, *"".join(terms[:i] + terms[i + 1 :])}
        if axes := [a for a, letter in enumerate(term) if letter not in needed]:  # tract would keep them
            xs[i] = h.reduce("sum_reduce", xs[i], axes)
            terms[i] = "".join(c for c in term if c in needed)
    if len(xs) == 1:
        return h.cast(h.transpose(xs[0], [terms[0].index(c) for c in result]), h.out.dtype)
    return h.cast(h.contract(xs, terms, result, h.out.shape), h.out.dtype)


def _diagonals(h, x, term):
    """An operand without the axes that its term names twice: tract loads no product with a diagonal, and cuts none."""
    while twice := next((c for c in term if term.count(c) > 1), None):
        x = diagonal(h, x, 0, term.index(twice), term.rindex(twice))
        term = term.replace(twice, "", 2) + twice
    return x, term


def _without_broadcasts(h, xs, terms):
    """The operands without axes of size 1 that are longer in another one: tract takes the first size for all."""
    sizes = [dict(zip(t, x.type.shape, strict=True)) for x, t in zip(xs, terms, strict=True)]
    longer = {c for known in sizes for c, size in known.items() if size != 1}
    gone = [
        [a for a, c in enumerate(t) if known[c] == 1 and c in longer] for t, known in zip(terms, sizes, strict=True)
    ]
    xs = [h.squeeze(x, axes) if axes else x for x, axes in zip(xs, gone, strict=True)]
    return xs, ["".join(c for a, c in enumerate(t) if a not in axes) for t, axes in zip(terms, gone, strict=True)]


def _terms(equation, ranks):
    """The terms with letters in the place of an ellipsis, and the result's, spelt out as torch means it."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    width = max((r - len(t) + 3 for t, r in zip(terms, ranks, strict=True) if "..." in t), default=0)
    shared = "".join(free[:width])
    spelt = [t.replace("...", shared[len(shared) - (r - len(t) + 3) :] if r - len(t) + 3 else "")
             for t, r in zip(terms, ranks, strict=True)]  # fmt: skip
    if not arrow:
        letters = re.sub(r"[^A-Za-z]", "", left)
        result = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return spelt, result.replace("...", shared)
