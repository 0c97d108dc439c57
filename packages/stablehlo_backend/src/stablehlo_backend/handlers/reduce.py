"""Sums, extremes and order; scans and what is picked from an order are decompositions."""

from ir.types import DType
from stablehlo_backend.handlers.elementwise import wide
from stablehlo_backend.registry import register as op


def reduced(h, op, x, dim, keepdim):
    return h.reduce(op, x, h.axes(dim, x) if x.type.rank else [], keepdim)


@op("aten::sum")
def sum_(h, self, dim=None, keepdim=False, dtype=None):
    return h.cast(reduced(h, "sum", wide(h, h.cast(self, h.out.dtype)), dim, keepdim), h.out.dtype)


@op("aten::prod")
def prod(h, self, dim=None, keepdim=False, dtype=None):
    return h.cast(reduced(h, "prod", wide(h, h.cast(self, h.out.dtype)), dim, keepdim), h.out.dtype)


@op("aten::amax", "aten::max.default")
def amax(h, self, dim=None, keepdim=False):
    return reduced(h, "max", self, dim, keepdim)


@op("aten::amin", "aten::min.default")
def amin(h, self, dim=None, keepdim=False):
    return reduced(h, "min", self, dim, keepdim)


@op("aten::any")
def any_(h, self, dim=None, keepdim=False):
    return h.cast(reduced(h, "any", h.cast(self, DType.bool), dim, keepdim), h.out.dtype)


@op("aten::all")
def all_(h, self, dim=None, keepdim=False):
    return h.cast(reduced(h, "all", h.cast(self, DType.bool), dim, keepdim), h.out.dtype)


@op("aten::sort")
def sort(h, self, dim=-1, descending=False, stable=None):
    """Equal elements by their places, for IREE's own order of these is another; a nan is above every number."""
    if self.type.rank == 0 or not self.type.is_static:
        h.refuse("IREE cannot sort along an axis while any size is dynamic")

    def less(a, b):
        if not a.type.dtype.is_float:
            return h.compare("LT", a, b)
        return h.emit("or", h.compare("LT", a, b), h.emit("and", h.isnan(b), h.emit("not", h.isnan(a))))

    def before(a, b, i, j):
        a, b = (h.cast(x, DType.int8) if x.type.dtype is DType.bool else x for x in (a, b))
        ahead, behind = (less(b, a), less(a, b)) if descending else (less(a, b), less(b, a))
        return [h.emit("or", ahead, h.emit("and", h.emit("not", behind), h.compare("LT", i, j)))]

    axis = h.axis(dim, self)
    places = h.iota(self.type.shape, axis)
    types = [self.type, places.type]
    region = h.region([t.with_shape(()) for t in types for _ in (0, 1)], before)
    made, where = h.emit("sort", self, places, dimension=axis, is_stable=True, regions=[region], type=types)
    return [made, h.emit("util.optimization_barrier", where, type=where.type)]  # which IREE computes on its stack else
