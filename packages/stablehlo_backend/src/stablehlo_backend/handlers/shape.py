"""Views, joins and splits."""

from ir.dims import Expr
from ir.types import DType
from stablehlo_backend.registry import register as op
from stablehlo_backend.registry import rows


def as_result(h, self, **_):
    """The elements in the shape that torch says."""
    return h.reshape(self, h.out.shape)


rows({"view": lambda h, self, size: as_result(h, self), "reshape": lambda h, self, shape: as_result(h, self),
      "_unsafe_view": lambda h, self, size: as_result(h, self),
      "flatten": lambda h, self, start_dim=0, end_dim=-1: as_result(h, self),
      "unflatten": lambda h, self, dim, sizes: as_result(h, self),
      "unsqueeze": lambda h, self, dim: as_result(h, self), "squeeze": lambda h, self, dim=None: as_result(h, self),
      "t": lambda h, self: h.transpose(self, list(range(self.type.rank))[::-1]),
      "alias": lambda h, self: self, "detach": lambda h, self: self, 
      "lift_fresh_copy": lambda h, self: self})  # fmt: skip


@op("aten::permute")
def permute(h, self, dims):
    return h.transpose(self, [h.axis(d, self) for d in dims])


@op("aten::transpose")
def transpose(h, self, dim0, dim1):
    order = list(range(self.type.rank))
    if order:
        a, b = h.axis(dim0, self), h.axis(dim1, self)
        order[a], order[b] = order[b], order[a]
    return h.transpose(self, order)


@op("aten::expand")
def expand(h, self, size, implicit=False):
    return h.broadcast(self, h.out.shape)


@op("aten::repeat")
def repeat(h, self, repeats):
    rank = len(repeats)
    x = h.reshape(self, (*[1] * (rank - self.type.rank), *self.type.shape))
    split = [d for r, n in zip(repeats, x.type.shape) for d in (r, n)]
    return h.reshape(h.broadcast(x, split, list(range(1, 2 * rank, 2))), h.out.shape)


@op("aten::slice")
def slice_(h, self, dim=0, start=None, end=None, step=1):
    axis = h.axis(dim, self)
    start, end = 0 if start is None else start, 2**62 if end is None else end
    for place in (start, end):
        if isinstance(place, Expr) and any(n not in h.graph.symbols for n in place.symbols):
            h.refuse(f"it cuts at {place}, whose sign is not known")
    return h.cut(self, axis, start, end, step, h.out.shape[axis])


@op("aten::select")
def select(h, self, dim, index):
    axis = h.axis(dim, self)
    if isinstance(index, Expr) or (index < 0 and isinstance(self.type.shape[axis], Expr)):
        place = h.tensor(index, DType.int64) if isinstance(index, Expr) else h.tensor(self.type.shape[axis] + index)
        row = h.take(h.moved(self, axis, 0), h.reshape(place, (1,)))
        return h.squeeze(row, 0)
    return h.squeeze(h.cut(self, axis, index % self.type.shape[axis] if index < 0 else index, index + 1 or 2**62), axis)


@op("aten::cat")
def cat(h, tensors, dim=0):
    parts = [t for t in tensors if t.type.shape != (0,) or len(h.out.shape) == 1]
    return h.concat([h.cast(t, h.out.dtype) for t in parts], h.axis(dim, parts[0]))


@op("aten::stack")
def stack(h, tensors, dim=0):
    axis = dim % len(h.out.shape)
    return h.concat([h.unsqueeze(h.cast(t, h.out.dtype), axis) for t in tensors], axis)


def pieces(h, x, dim, sizes):
    axis, start, found = h.axis(dim, x), 0, []
    for size in sizes:
        found.append(h.cut(x, axis, start, start + size, 1, size))
        start = start + size
    return found


@op("aten::split", "aten::split_with_sizes", "aten::chunk", "aten::tensor_split", "aten::unsafe_split",
    "aten::unsafe_chunk")  # fmt: skip
def split(h, self, dim=0, **_):
    axis = h.axis(dim, self)
    return pieces(h, self, axis, [r.shape[axis] for r in h.results])


@op("aten::unbind")
def unbind(h, self, dim=0):
    axis = h.axis(dim, self)
    return [h.squeeze(h.cut(self, axis, i, i + 1), axis) for i in range(len(h.results))]


@op("aten::flip")
def flip(h, self, dims):
    axes = sorted(h.axis(d, self) for d in dims)
    return h.emit("reverse", self, dimensions=axes, type=self.type) if axes and self.type.rank else self


@op("aten::constant_pad_nd")
def constant_pad_nd(h, self, pad, value=0):
    for i in range(len(pad) // 2):
        self = h.pad(self, self.type.rank - 1 - i, pad[2 * i], pad[2 * i + 1], value)
    return self


@op("aten::diagonal", "aten::diagonal_copy")
def diagonal(h, self, offset=0, dim1=0, dim2=1):
    a, b = h.axis(dim1, self), h.axis(dim2, self)
    order = [i for i in range(self.type.rank) if i not in (a, b)]
    x = h.transpose(self, [a, b, *order])
    width = h.tensor(x.type.shape[1] + 1, DType.int64)
    first = -offset * x.type.shape[1] if offset < 0 else offset
    places = h.emit("multiply", h.iota([h.out.shape[-1]]), width)
    rows = h.take(h.flat(x, 0, 1), h.emit("add", places, h.tensor(first, DType.int64)))
    return h.moved(rows, 0, rows.type.rank - 1)


@op("aten::unfold")
def unfold(h, self, dimension, size, step):
    if self.type.rank == 0:
        return h.reshape(self, h.out.shape)
    axis = h.axis(dimension, self)
    count = h.out.shape[axis]
    parts = [h.window(self, axis, i, count, step) for i in range(size)]
    return h.concat([h.unsqueeze(p, self.type.rank) for p in parts], self.type.rank)


@op("aten::roll")
def roll(h, self, shifts, dims=()):
    flat = self if dims else h.flat(self)
    for shift, dim in zip(shifts, dims or [0], strict=True):
        axis = h.axis(dim, flat)
        size = flat.type.shape[axis]
        if not flat.type.rank or size == 0:
            return self
        place = -shift % size
        flat = h.concat([h.cut(flat, axis, place), h.cut(flat, axis, 0, place)], axis)
    return h.reshape(flat, self.type.shape)
