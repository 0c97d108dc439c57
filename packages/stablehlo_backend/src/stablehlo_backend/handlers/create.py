"""New tensors."""

from ir.ops import FILLS, UNINITIALIZED
from ir.types import DType
from stablehlo_backend.registry import register as op
from stablehlo_backend.registry import rows


def filled(h, value):
    return h.full(h.out.shape, value, h.out.dtype)


@op(*FILLS, *UNINITIALIZED)
def new(h, fill_value=None, **_):
    number = FILLS.get(h.node.op, 0)
    return filled(h, fill_value if number is None else number)


rows({"fill": lambda h, self, value: filled(h, value), "scalar_tensor": lambda h, s, **_: filled(h, s)})


@op("aten::arange")
def arange(h, end, start=0, step=1, **_):
    work = DType.int64 if h.out.dtype.is_integer else DType.float64
    steps = h.emit("multiply", h.cast(h.iota(h.out.shape), work), h.tensor(step, work))
    return h.cast(h.emit("add", steps, h.tensor(start, work)), h.out.dtype)
