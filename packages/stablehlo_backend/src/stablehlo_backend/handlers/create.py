"""New tensors."""

from ir.types import DType
from stablehlo_backend.registry import register as op


def filled(h, value):
    return h.full(value, h.out.shape, h.out.dtype)


@op("aten::full", "aten::full_like", "aten::new_full")
def full(h, fill_value, **_):
    return filled(h, fill_value)


@op("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::empty", "aten::empty_like", "aten::new_empty",
    "aten::empty_strided", "aten::new_empty_strided", "aten::empty_permuted")  # fmt: skip
def zeros(h, **_):
    return filled(h, 0)


@op("aten::ones", "aten::ones_like", "aten::new_ones")
def ones(h, **_):
    return filled(h, 1)


@op("aten::fill")
def fill(h, self, value):
    return filled(h, value)


@op("aten::scalar_tensor")
def scalar_tensor(h, s, **_):
    return h.tensor(s, h.out.dtype)


@op("aten::arange")
def arange(h, end, start=0, step=1, **_):
    work = DType.int64 if h.out.dtype.is_integer else DType.float64
    steps = h.cast(h.iota(h.out.shape), work)
    made = h.emit("add", h.emit("multiply", steps, h.tensor(step, work)), h.tensor(start, work))
    return h.cast(made, h.out.dtype)
