"""Rows along one axis, and what a mask picks; other reading and writing by index is decomposed to these."""

from ir.dims import Expr, product
from ir.geometry import broadcast, invert, runtime_broadcast
from ir.types import DType
from stablehlo_backend.registry import register as op


def in_front(h, x, axis):
    """The tensor with one axis in front, and the order of axes that does it."""
    order = [axis, *(a for a in range(x.type.rank) if a != axis)]
    return h.transpose(x, order), order


@op("aten::index_select")
def index_select(h, self, dim, index):
    if self.type.rank == 0:
        return h.reshape(self, h.out.shape)
    front, order = in_front(h, self, h.axis(dim, self))
    return h.transpose(h.take(front, h.in_range(h.flat(index), front.type.shape[0])), invert(order))


@op("aten::embedding")
def embedding(h, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return h.take(weight, h.in_range(indices, weight.type.shape[0]))


@op("aten::take")
def take(h, self, index):
    flat = h.flat(self)
    return h.take(flat, h.in_range(index, flat.type.shape[0], from_end=True))


@op("aten::index_fill")
def index_fill(h, self, dim, index, value):
    x = self if self.type.rank else h.reshape(self, (1,))
    rows, order = in_front(h, x, h.axis(dim, x))
    places = h.in_range(h.flat(index), rows.type.shape[0], from_end=True)
    updates = h.full((*places.type.shape, *rows.type.shape[1:]), value, self.type.dtype)
    return h.reshape(h.transpose(h.put(rows, places, updates), invert(order)), self.type.shape)


WORDS = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}


@op("aten::index_copy", "aten::index_add", "aten::index_reduce")
def index_copy(h, self, dim, index, source, alpha=1, reduce=None, include_self=True):
    if alpha != 1 or reduce == "mean":
        h.refuse("alpha other than 1 and reduce='mean' have no scatter of StableHLO")
    if h.node.op == "aten::index_add" and self.type.dtype is DType.float16:  # as torch, which rounds the whole sum
        x, source = (h.cast(t, DType.float32) for t in (self, source))
        return h.cast(index_copy(h, x, dim, index, source), DType.float16)
    x, source = (t if t.type.rank else h.reshape(t, (1,)) for t in (self, source))
    rows, order = in_front(h, x, h.axis(dim, x))
    updates, index = h.transpose(source, order), h.in_range(h.flat(index), rows.type.shape[0])
    if not include_self:  # what is written to begins with what changes nothing
        start = {"prod": 1, "amax": h.lowest(self.type.dtype), "amin": h.lowest(self.type.dtype, 1)}[reduce]
        rows = h.put(rows, index, h.full(updates.type.shape, start, self.type.dtype))
    made = h.put(rows, index, updates, WORDS[reduce] if reduce else "add" if h.node.op == "aten::index_add" else "")
    return h.reshape(h.transpose(made, invert(order)), self.type.shape)


# -- masks: the number of elements is known when it runs ---------------------------------------------------------------


def held(h, mask, name):
    """The places of what is true, in the flat tensor."""
    flat = h.flat(mask)
    places = h.iota(flat.type.shape)
    keys = h.where(flat, places, h.tensor(flat.type.shape[0], DType.int64))
    region = h.scalar_region([keys], lambda a, b: [h.compare("LT", a, b)])
    ordered = h.emit("sort", keys, dimension=0, is_stable=True, regions=[region], type=keys.type)
    return h.leading(ordered, h.reduce("sum", h.cast(flat, DType.int64), [0]), name)


@op("aten::index")
def index(h, self, indices):
    """By one mask or one tensor of numbers; several come down to rows."""
    given = [(k, i) for k, i in enumerate(indices) if i is not None]
    first, index = given[0]
    masked, sizes = index.type.dtype is DType.bool, self.type.shape
    count = h.out.shape[first] if len(given) == 1 else None
    if len(given) != 1 or (masked and isinstance(count, Expr) and (count.as_symbol is None or count in sizes)):
        h.refuse("it takes one index, or a mask whose result's size is a symbol of its own or fixed")
    width = index.type.rank if masked else 1
    front = h.transpose(self, [*range(first, first + width), *range(first), *range(first + width, self.type.rank)])
    rows = h.reshape(front, (product(front.type.shape[:width]), *front.type.shape[width:]))
    number = held(h, index, count) if masked else h.in_range(index, sizes[first], from_end=True)
    made, rank = h.take(rows, number), number.type.rank
    return h.transpose(made, [*range(rank, rank + first), *range(rank), *range(rank + first, made.type.rank)])


@op("aten::masked_select")
def masked_select(h, self, mask):
    shape = broadcast(self.type.shape, mask.type.shape)
    if shape != runtime_broadcast(self.type.shape, mask.type.shape):  # IREE repeats no axis of one place
        h.refuse("its mask has sizes of its own; give them the names of the other operand's in dynamic_shapes")
    x, mask = h.broadcast(self, shape), h.broadcast(mask, shape)
    return h.take(h.flat(x), held(h, mask, h.out.shape[0]))


@op("aten::nonzero")
def nonzero(h, self):
    shape = self.type.shape
    if not shape:
        h.refuse("nonzero of a tensor of rank 0; reshape it to [1] first")
    number, found = held(h, h.cast(self, DType.bool), h.out.shape[0]), []
    for axis, size in enumerate(shape):
        after = h.tensor(product(shape[axis + 1 :]), DType.int64)
        place = h.emit("remainder", h.emit("divide", number, after), h.tensor(size, DType.int64))
        found.append(h.unsqueeze(place, [1]))
    return h.concat(found, 1)
