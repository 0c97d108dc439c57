"""Products."""

from ir import geometry
from ir.types import DType
from stablehlo_backend.handlers.elementwise import scaled, wide
from stablehlo_backend.registry import register as op


def product(h, a, b):
    """Matrices by matrices, the axes before them alike; half precision sums in float32."""
    rank = a.type.rank
    lead = tuple(range(rank - 2))
    if a.type.dtype is DType.bool:
        h.refuse("it multiplies matrices of truth values; cast them to integers")
    made = h.dot(wide(h, a), wide(h, b), (lead, lead), ((rank - 1,), (rank - 2,)))
    return h.cast(made, a.type.dtype)


@op("aten::mm", "aten::bmm")
def mm(h, self, mat2):
    return product(h, self, mat2)


@op("aten::matmul")
def matmul(h, self, other):
    a = h.unsqueeze(self, 0) if self.type.rank == 1 else self
    b = h.unsqueeze(other, 1) if other.type.rank == 1 else other
    if b.type.rank == 2:
        made = h.dot(wide(h, a), wide(h, b), ((), ()), ((a.type.rank - 1,), (0,)))
    else:
        lead = geometry.broadcast(a.type.shape[:-2], b.type.shape[:-2])
        made = product(h, *(h.broadcast(x, (*lead, *x.type.shape[-2:])) for x in (a, b)))
    return h.cast(h.reshape(made, h.out.shape), h.out.dtype)


@op("aten::linear")
def linear(h, input, weight, bias=None):
    made = h.dot(wide(h, input), wide(h, weight), ((), ()), ((input.type.rank - 1,), (weight.type.rank - 1,)))
    return h.cast(made if bias is None else h.emit("add", made, wide(h, bias)), h.out.dtype)


@op("aten::addmm")
def addmm(h, self, mat1, mat2, beta=1, alpha=1):
    return added(h, self, product(h, mat1, mat2), beta, alpha)


@op("aten::baddbmm")
def baddbmm(h, self, batch1, batch2, beta=1, alpha=1):
    return added(h, self, product(h, batch1, batch2), beta, alpha)


def added(h, x, made, beta, alpha):
    made = scaled(h, made, alpha)
    return made if beta == 0 else h.emit("add", made, scaled(h, x, beta))


@op("aten::dot", "aten::vdot")
def dot(h, self, tensor=None, other=None):
    x = tensor if other is None else other
    return h.cast(h.dot(wide(h, self), wide(h, x), ((), ()), ((0,), (0,))), h.out.dtype)


@op("aten::mv")
def mv(h, self, vec):
    return h.cast(h.dot(wide(h, self), wide(h, vec), ((), ()), ((1,), (0,))), h.out.dtype)


@op("aten::addbmm")
def addbmm(h, self, batch1, batch2, beta=1, alpha=1):
    made = h.dot(wide(h, batch1), wide(h, batch2), ((), ()), ((0, 2), (0, 1)))
    return added(h, self, h.cast(made, self.type.dtype), beta, alpha)


@op("aten::trace")
def trace(h, self):
    same = h.compare("EQ", h.iota(self.type.shape, 0), h.iota(self.type.shape, 1))
    x = wide(h, h.cast(self, h.out.dtype))
    return h.cast(h.reduce([h.where(same, x, 0)], [0], [0, 1], "add")[0], h.out.dtype)
