"""New tensors."""

from ir.types import DType
from stablehlo_backend.registry import register as op
from stablehlo_backend.registry import rows


def filled(h, value):
    return h.full(value, h.out.shape, h.out.dtype)


ZEROS = ("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
         "empty_permuted")  # fmt: skip
rows({name: lambda h, **_: filled(h, 0) for name in ZEROS})
rows({name: lambda h, **_: filled(h, 1) for name in ("ones", "ones_like", "new_ones")})
rows({name: lambda h, fill_value, **_: filled(h, fill_value) for name in ("full", "full_like", "new_full")})
rows({"fill": lambda h, self, value: filled(h, value), "scalar_tensor": lambda h, s, **_: filled(h, s)})


@op("aten::arange")
def arange(h, end, start=0, step=1, **_):
    work = DType.int64 if h.out.dtype.is_integer else DType.float64
    steps = h.emit("multiply", h.cast(h.iota(h.out.shape), work), h.tensor(step, work))
    return h.cast(h.emit("add", steps, h.tensor(start, work)), h.out.dtype)
