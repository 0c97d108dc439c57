"""Reading and writing by index: rows along one axis, to which every other form comes down."""

from ir.dims import Expr, product
from ir.geometry import broadcast
from ir.types import DType
from stablehlo_backend.handlers.elementwise import floored
from stablehlo_backend.registry import register as op


def from_front(h, index, size):
    """Negative numbers count from the end."""
    index = h.cast(index, DType.int64)
    return h.where(h.compare("LT", index, 0), h.emit("add", index, h.tensor(size, DType.int64)), index)


@op("aten::index_select")
def index_select(h, self, dim, index):
    if self.type.rank == 0:
        return h.reshape(self, h.out.shape)
    axis = h.axis(dim, self)
    rows = h.take(h.moved(self, axis, 0), h.flat(h.cast(index, DType.int64)) if index.type.rank else
                  h.reshape(h.cast(index, DType.int64), (1,)))  # fmt: skip
    return h.moved(rows, 0, axis)


@op("aten::embedding")
def embedding(h, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return h.take(weight, h.cast(indices, DType.int64))


def linear(h, x, indices):
    """The axes that have an index, in one place: the tensor with these in front as one, and the number of each row.

    Also the order of axes that brings them to the front, and the shape of the numbers.
    """
    axes = [a for a, i in enumerate(indices) if i is not None]
    order = [*axes, *(a for a in range(x.type.rank) if a not in axes)]
    sizes = [x.type.shape[a] for a in axes]
    given = h.align(*(from_front(h, indices[a], x.type.shape[a]) for a in axes))
    number = given[0]
    for index, size in zip(given[1:], sizes[1:], strict=True):
        number = h.emit("add", h.emit("multiply", number, h.tensor(size, DType.int64)), index)
    front = h.transpose(x, order)
    rows = h.reshape(front, (product(sizes), *front.type.shape[len(axes) :]))
    return rows, number, axes, order, front.type.shape


def placed(axes):
    """Where the axes of the index go: to the first indexed one where these lie side by side, else to the front."""
    return axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0


@op("aten::index", "aten::_unsafe_index")
def index(h, self, indices):
    for k, mask in enumerate(indices):
        if mask is not None and mask.type.dtype is DType.bool:  # the places of what is true, an index for each axis
            sizes = [d for d in h.out.shape if isinstance(d, Expr) and d not in self.type.shape]
            if len(sizes) != 1:
                h.refuse("it has no name for the number of elements that a mask picks")
            number = held(h, mask, sizes[0])
            indices = [*indices[:k], *columns(h, mask.type.shape, number), *indices[k + 1 :]]
            break
    rows, number, axes, *_ = linear(h, self, indices)
    made = h.take(rows, number)
    rank, place = number.type.rank, placed(axes)
    order = list(range(rank, rank + place))
    order += [*range(rank), *range(rank + place, made.type.rank)]
    return h.transpose(made, order)


@op("aten::index_put", "aten::_unsafe_index_put")
def index_put(h, self, indices, values, accumulate=False):
    if any(i is not None and i.type.dtype is DType.bool for i in indices):
        if len(indices) > 1 or values.type.rank or accumulate:
            h.refuse("it writes one number for each element that a mask picks; use torch.where")
        mask = h.reshape(indices[0], (*indices[0].type.shape, *[1] * (self.type.rank - indices[0].type.rank)))
        return h.where(mask, values, self)
    rows, number, axes, order, shape = linear(h, self, indices)
    rank, place, rest = number.type.rank, placed(axes), rows.type.shape[1:]
    window = (*rest[:place], *number.type.shape, *rest[place:])
    values = h.broadcast(h.cast(values, self.type.dtype), window)
    values = h.transpose(values, [*range(place, place + rank), *range(place), *range(place + rank, len(window))])
    updates = h.reshape(values, (product(number.type.shape), *rest))
    made = h.put(rows, h.reshape(number, (product(number.type.shape),)), updates, "add" if accumulate else "")
    back = h.reshape(made, shape)
    return h.transpose(back, [order.index(a) for a in range(len(order))])


def cells(h, x, axis, index):
    """The place of each element that an index along one axis names, in the flat tensor."""
    number = h.full(0, index.type.shape, DType.int64)
    for a, size in enumerate(x.type.shape):
        part = from_front(h, index, size) if a == axis else h.iota(index.type.shape, a)
        number = h.emit("add", h.emit("multiply", number, h.tensor(size, DType.int64)), part)
    return number


@op("aten::gather")
def gather(h, self, dim, index, sparse_grad=False):
    if self.type.rank == 0 or index.type.rank == 0:
        return h.broadcast(h.reshape(self, ()), index.type.shape)
    return h.take(h.flat(self), cells(h, self, h.axis(dim, self), index))


def scattered(h, x, dim, index, src, by=""):
    if x.type.rank == 0:
        flat = h.put(h.reshape(x, (1,)), h.reshape(index, (1,)), h.reshape(h.tensor(src, x.type.dtype), (1,)), by)
        return h.reshape(flat, ())
    number = h.flat(cells(h, x, h.axis(dim, x), index))
    if h.is_value(src) and src.type.rank:
        for axis, size in enumerate(index.type.shape):
            src = h.cut(src, axis, 0, size, 1, size)
    updates = h.flat(h.broadcast(h.tensor(src, x.type.dtype), index.type.shape))
    return h.reshape(h.put(h.flat(x), number, updates, by), x.type.shape)


WORDS = {"add": "add", "multiply": "multiply", "sum": "add", "prod": "multiply", "amax": "maximum", "amin": "minimum"}


@op("aten::scatter")
def scatter(h, self, dim, index, src=None, value=None, reduce=None):
    return scattered(h, self, dim, index, value if src is None else src, WORDS[reduce] if reduce else "")


@op("aten::scatter_add")
def scatter_add(h, self, dim, index, src):
    return scattered(h, self, dim, index, src, "add")


@op("aten::scatter_reduce")
def scatter_reduce(h, self, dim, index, src, reduce, include_self=True):
    x, dtype = self, self.type.dtype
    one = h.const(1, dtype)
    if not include_self:  # what is written to begins with what changes nothing
        start = {"sum": 0, "mean": 0, "prod": 1, "amax": h.lowest(dtype), "amin": h.highest(dtype)}[reduce]
        x = scattered(h, x, dim, index, start)
    if reduce != "mean":
        return scattered(h, x, dim, index, src, WORDS[reduce])
    counts = h.full(1, x.type.shape, dtype)
    counts = counts if include_self else scattered(h, counts, dim, index, 0)
    counts = h.emit("maximum", scattered(h, counts, dim, index, one, "add"), 1)
    total = scattered(h, x, dim, index, src, "add")
    return h.emit("divide", total, counts) if dtype.is_float else floored(h, total, counts)


@op("aten::diagonal_scatter")
def diagonal_scatter(h, self, src, offset=0, dim1=0, dim2=1):
    a, b = h.axis(dim1, self), h.axis(dim2, self)
    order = [a, b, *(i for i in range(self.type.rank) if i not in (a, b))]
    x = h.transpose(self, order)
    first = -offset * x.type.shape[1] if offset < 0 else offset
    step = h.tensor(x.type.shape[1] + 1, DType.int64)
    places = h.emit("add", h.emit("multiply", h.iota(src.type.shape[-1:]), step), h.tensor(first, DType.int64))
    rows = h.put(h.flat(x, 0, 1), places, h.moved(src, src.type.rank - 1, 0))
    return h.transpose(h.reshape(rows, x.type.shape), [order.index(i) for i in range(self.type.rank)])


def held(h, mask, name):
    """The places of what is true, in the flat tensor; their number is known when it runs."""
    flat = h.flat(mask) if mask.type.rank else h.reshape(mask, (1,))
    count = h.reduce([h.cast(flat, DType.int64)], [0], [0], "add")[0]
    places = h.iota(flat.type.shape)
    size = h.tensor(flat.type.shape[0], DType.int64)
    keys = h.where(flat, places, size)
    return h.leading(h.ordered(keys), count, name)


def columns(h, shape, number):
    """Places in a flat tensor as an index for each axis."""
    found = []
    for axis, size in enumerate(shape):
        after = h.tensor(product(shape[axis + 1 :]), DType.int64)
        found.append(h.emit("remainder", h.emit("divide", number, after), h.tensor(size, DType.int64)))
    return found


@op("aten::masked_select")
def masked_select(h, self, mask):
    shape = broadcast(self.type.shape, mask.type.shape)
    x, mask = h.broadcast(self, shape), h.broadcast(mask, shape)
    return h.take(h.flat(x) if shape else h.reshape(x, (1,)), held(h, mask, h.out.shape[0]))


@op("aten::nonzero")
def nonzero(h, self):
    x = h.cast(self, DType.bool)
    number = held(h, x, h.out.shape[0])
    found = [h.unsqueeze(c, 1) for c in columns(h, x.type.shape, number)]
    if not found:
        h.refuse("it counts a tensor without axes")
    return h.concat(found, 1)
