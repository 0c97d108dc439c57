"""Views, joins and splits."""

from ir.dims import Expr, call, maximum, minimum
from ir.types import DType
from stablehlo_backend.registry import register as op
from stablehlo_backend.registry import rows

rows({name: lambda h, self, **_: h.reshape(self, h.out.shape) for name in ("flatten", "unflatten", "ravel")})
rows({name: lambda h, self: self for name in ("alias", "detach", "lift_fresh_copy")})


@op("aten::view", "aten::reshape", "aten::_unsafe_view")
def reshape(h, self, size=None, shape=None):
    """To the sizes that are asked for, of which torch.export takes one for the quotient of the others."""
    for asked, made in zip(size or shape or (), h.out.shape, strict=True):
        if asked not in (made, -1):
            h.require(
                call("eq", asked, made),
                f"{h.node.short_op} to {asked}, where {made} elements are left",
            )
    return h.reshape(self, h.out.shape)


@op("aten::slice")
def slice_(h, self, dim=0, start=None, end=None, step=1):
    axis = h.axis(dim, self)
    start, end = 0 if start is None else start, 2**62 if end is None else end
    for place in (start, end):
        if isinstance(place, Expr) and any(n not in h.graph.symbols for n in place.symbols):
            h.refuse(f"it cuts at {place}, whose sign is not known")
    return h.slice(self, axis, start, end, step, h.out.shape[axis])


@op("aten::select")
def select(h, self, dim, index):
    axis = h.axis(dim, self)
    size = self.type.shape[axis]
    if isinstance(index, int) and (index >= 0 or isinstance(size, int)):
        index = index % size if index < 0 else index
        return h.reshape(h.slice(self, axis, index, index + 1), h.out.shape)
    place = call("where", call("lt", index, 0), size + index, index) if isinstance(index, Expr) else size + index
    beyond = f"select has the index {index} of an axis of {size}"
    h.require(call("and", call("ge", place, 0), call("lt", place, size)), beyond)
    place = h.tensor(maximum(minimum(place, size - 1), 0), DType.int64)
    front = h.transpose(self, [axis, *(i for i in range(self.type.rank) if i != axis)])
    return h.reshape(h.take(front, h.reshape(place, (1,))), h.out.shape)


@op("aten::cat")
def cat(h, tensors, dim=0):
    parts = [t for t in tensors if t.type.shape != (0,) or len(h.out.shape) == 1]
    return h.concat([h.cast(t, h.out.dtype) for t in parts], h.axis(dim, parts[0]))


@op("aten::stack")
def stack(h, tensors, dim=0):
    axis = dim % len(h.out.shape)
    return h.concat([h.unsqueeze(h.cast(t, h.out.dtype), [axis]) for t in tensors], axis)


@op("aten::split", "aten::split_with_sizes", "aten::tensor_split.sections")
def split(h, self, dim=0, **_):
    axis, start, found = h.axis(dim, self), 0, []
    for size in (r.shape[axis] for r in h.results):
        found.append(h.slice(self, axis, start, start + size, 1, size))
        start = start + size
    return found


@op("aten::unbind")
def unbind(h, self, dim=0):
    axis = h.axis(dim, self)
    return [h.reshape(h.slice(self, axis, i, i + 1), r.shape) for i, r in enumerate(h.results)]


@op("aten::flip")
def flip(h, self, dims):
    axes = sorted(h.axis(d, self) for d in dims)
    return h.emit("reverse", self, dimensions=axes, type=self.type) if axes and self.type.rank else self


@op("aten::constant_pad_nd")
def constant_pad_nd(h, self, pad, value=0):
    rank, dtype = self.type.rank, self.type.dtype
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = rank - 1 - i
        size = self.type.shape[axis]
        first, last = (-p if isinstance(p, int) and p < 0 else 0 for p in (before, after))
        self = h.slice(self, axis, first, size - last)
    pad = [max(p, 0) if isinstance(p, int) else p for p in pad]
    if all(isinstance(p, int) for p in pad):
        low, high = ([0] * (rank - len(pad) // 2) + pad[side::2][::-1] for side in (0, 1))
        between = [0] * rank
        return h.emit("pad", self, h.tensor(value, dtype), edge_padding_low=low, edge_padding_high=high,
                      interior_padding=between, type=h.out)  # fmt: skip
    for i, ends in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis, shape = rank - 1 - i, self.type.shape
        before, after = (h.full([*shape[:axis], n, *shape[axis + 1 :]], value, dtype) for n in ends)
        self = h.concat([before, self, after], axis)
    return self
