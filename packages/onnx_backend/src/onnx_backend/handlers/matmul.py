"""Products of matrices and vectors."""

from __future__ import annotations

from ir.dims import Expr
from ir.types import DType
from onnx_backend.building import made
from onnx_backend.handlers.reduce import total
from onnx_backend.registry import register as op


def times(h, x, factor):
    """`x * factor`; integers keep to integer factors, as torch does."""
    return x if factor == 1 else h.emit("Mul", x, factor)


def combined(h, c, product, beta, alpha):
    """`beta * c + alpha * product`; with beta 0 not even a nan of c counts."""
    product = times(h, product, alpha)
    return product if beta == 0 else h.emit("Add", times(h, c, beta), product)


def product(h, a, b):
    """A product of vectors, matrices or batches of them; narrow integers are summed in int32 and wrap, as in torch."""
    return h.emit("MatMul", a, b)


@op("aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::linalg_matmul")
def matmul(h, self, other=None, mat2=None, vec=None):
    return product(h, self, next(x for x in (other, mat2, vec) if x is not None))


@op("aten::dot", "aten::vdot")
def dot(h, self, tensor=None, other=None):
    return product(h, self, other if tensor is None else tensor)


@op("aten::outer", "aten::ger")
def outer(h, self, vec2):
    column, row = (h.cast(x, h.out.dtype) for x in (h.unsqueeze(self, [1]), vec2))
    return h.emit("Mul", column, row)


@op("aten::inner")
def inner(h, self, other):
    if self.type.rank == 0 or other.type.rank == 0:
        return h.emit("Mul", self, other)
    if other.type.rank > 2:
        h.refuse("the second operand has more than two dimensions")
    return product(h, self, h.transpose(other, list(range(other.type.rank))[::-1]))


@op("aten::addmm")
def addmm(h, self, mat1, mat2, beta=1, alpha=1):
    inner = mat1.type.shape[1]
    perhaps_empty = inner == 0 or isinstance(inner, Expr)  # where onnxruntime's Gemm forgets beta
    if not h.out.dtype.is_float or (perhaps_empty and beta not in (0, 1)):
        return combined(h, self, product(h, mat1, mat2), beta, alpha)
    return h.emit("Gemm", mat1, mat2, self if beta else None, alpha=float(alpha), beta=float(beta), shape=h.out.shape)


@op("aten::addmv")
def addmv(h, self, mat, vec, beta=1, alpha=1):
    return combined(h, self, product(h, mat, vec), beta, alpha)


@op("aten::baddbmm")
def baddbmm(h, self, batch1, batch2, beta=1, alpha=1):
    return combined(h, self, product(h, batch1, batch2), beta, alpha)


@op("aten::addbmm")
def addbmm(h, self, batch1, batch2, beta=1, alpha=1):
    """Halves in float32, as torch sums them: each term rounded would lose what cancels."""
    dtype = h.out.dtype
    work = DType.float32 if dtype.is_float and dtype.bits < 32 else dtype
    self, batch1, batch2 = (h.cast(t, work) for t in (self, batch1, batch2))
    return h.cast(combined(h, self, total(h, product(h, batch1, batch2), [0]), beta, alpha), dtype)


@op("aten::addr")
def addr(h, self, vec1, vec2, beta=1, alpha=1):
    return combined(h, self, outer(h, vec1, vec2), beta, alpha)


@op("aten::linear")
def linear(h, input, weight, bias=None):
    if input.type.rank == 2 and weight.type.rank == 2 and h.out.dtype.is_float:
        return h.emit("Gemm", input, weight, bias, transB=1, shape=h.out.shape)
    result = product(h, input, turned(h, weight) if weight.type.rank == 2 else weight)
    return result if bias is None else h.emit("Add", result, bias)


def turned(h, weight):
    """The transposed weight: written that way, unless something else reads it too (an embedding tied to its head)."""
    alone = all(n.op == "aten::linear" for n in h.graph.uses.get(h.node.args.get("weight"), ()))
    columns, rows = weight.type.shape
    written = h.derived("transposed", [weight], lambda w: w.T, (rows, columns), within=made.turned) if alone else None
    return h.transpose(weight, [1, 0]) if written is None else written


@op("aten::bilinear")
def bilinear(h, input1, input2, weight, bias=None):
    result = h.emit("Einsum", input1, weight, input2, equation="...i,oij,...j->...o", shape=h.out.shape)
    return result if bias is None else h.emit("Add", result, bias)


@op("aten::linalg_cross", "aten::cross")
def cross(h, self, other, dim=-1):
    if dim is None:
        dim = next(i for i, s in enumerate(self.type.shape) if s == 3)
    axis = h.axis(dim, self)

    def turned(x, order):
        return h.emit("Gather", x, order, axis=axis)

    first = h.emit("Mul", turned(self, [1, 2, 0]), turned(other, [2, 0, 1]))
    return h.emit("Sub", first, h.emit("Mul", turned(self, [2, 0, 1]), turned(other, [1, 2, 0])))


@op("aten::trace")
def trace(h, self):
    x = h.cast(self, h.out.dtype)
    diagonal = h.cast(h.emit("EyeLike", x), DType.bool)  # as a choice: a product would make NaN of infinity beside it
    return total(h, h.emit("Where", diagonal, x, h.const(0, x.type.dtype)), [0, 1])
