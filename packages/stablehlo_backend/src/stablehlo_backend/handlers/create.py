"""New tensors."""

from ir.types import DType
from stablehlo_backend.registry import register as op


@op("aten::arange")
def arange(h, end, start=0, step=1, **_):
    work = DType.int64 if h.out.dtype.is_integer else DType.float64
    steps = h.emit("multiply", h.cast(h.iota(h.out.shape), work), h.tensor(step, work))
    return h.cast(h.emit("add", steps, h.tensor(start, work)), h.out.dtype)
