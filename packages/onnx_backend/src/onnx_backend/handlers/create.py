"""New tensors: filled, counted, random."""

from __future__ import annotations

from ir.dims import Expr
from ir.types import DType

from onnx_backend.registry import register as op

# Where a tensor lies and how (device, layout, memory format) has no form in ONNX; `**_` takes it.


@op("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero", "aten::empty", "aten::empty_like",
    "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided", "aten::empty_permuted")  # fmt: skip
def zeros(h, **_):
    """Empty tensors are zeros: a model that reads them has no result to compare with."""
    return h.full(h.out.shape, 0, h.out.dtype)


@op("aten::ones", "aten::ones_like", "aten::new_ones")
def ones(h, **_):
    return h.full(h.out.shape, 1, h.out.dtype)


@op("aten::full", "aten::full_like", "aten::new_full")
def full(h, fill_value, **_):
    return h.full(h.out.shape, fill_value, h.out.dtype)


@op("aten::scalar_tensor")
def scalar_tensor(h, s, **_):
    return h.tensor(s, h.out.dtype)


@op("aten::arange")
def arange(h, end, start=0, step=1, **_):
    dtype = h.out.dtype
    work = dtype if dtype in (DType.int64, DType.int32, DType.float32, DType.float64) else DType.float32
    if dtype.is_integer and work is DType.float32:
        work = DType.int64
    (size,) = h.out.shape
    if dtype.is_float and not isinstance(step, Expr):
        # start + i * step, as torch counts; adding step by step would drift
        steps = h.cast(h.range(0, size, size=size), work)
        steps = steps if step == 1 else h.emit("Mul", steps, step)
        return h.cast(steps if start == 0 else h.emit("Add", steps, h.tensor(start, work)), dtype)
    return h.cast(h.range(start, end, step, size=size, dtype=work), dtype)


@op("aten::linspace")
def linspace(h, start, end, steps, **_):
    count = h.static(steps, "the number of steps")
    work = DType.float64 if h.out.dtype is DType.float64 or not h.out.dtype.is_float else DType.float32
    places = h.range(0, count, size=count)
    share = h.emit("Div", h.cast(places, work), max(count - 1, 1))
    gap = h.emit("Sub", h.tensor(end, work), h.tensor(start, work)) if h.is_value(start) or h.is_value(end) else end - start
    return h.cast(h.emit("Add", h.emit("Mul", share, gap), h.tensor(start, work)), h.out.dtype)


@op("aten::logspace")
def logspace(h, start, end, steps, base=10.0, **_):
    count = h.static(steps, "the number of steps")
    if h.is_value(start) or h.is_value(end):
        h.refuse("bounds that are tensors")
    step = (end - start) / max(count - 1, 1)
    exact = [base ** (start + i * step) for i in range(count)]
    return h.const([int(x) for x in exact] if h.out.dtype.is_integer else exact, h.out.dtype)


@op("aten::eye")
def eye(h, **_):
    return h.emit("EyeLike", h.full(h.out.shape, 0, DType.int64), dtype=h.out.dtype)


def triangle(h, row, col, keep):
    """The positions of a triangle of a static matrix, as torch lists them."""
    found = [(r, c) for r in range(row) for c in range(col) if keep(r, c)]
    return h.const([[r for r, _ in found], [c for _, c in found]], h.out.dtype)


@op("aten::tril_indices")
def tril_indices(h, row, col, offset=0, **_):
    return triangle(h, row, col, lambda r, c: c - r <= offset)


@op("aten::triu_indices")
def triu_indices(h, row, col, offset=0, **_):
    return triangle(h, row, col, lambda r, c: c - r >= offset)


# -- chance ------------------------------------------------------------------------------------------------------------


def drawn(h, op_type, dtype=None, **attributes):
    """Random numbers of the result's shape; the sizes may be known at run time only."""
    dtype = dtype or h.out.dtype
    work = dtype if dtype.is_float and dtype is not DType.bfloat16 else DType.float32
    if all(isinstance(s, int) for s in h.out.shape) and h.out.shape:
        made = h.emit(op_type, shape=h.out.shape, dtype=work, **attributes)
    else:
        like = h.full(h.out.shape, 0.0, work)
        made = h.emit(f"{op_type}Like", like, dtype=work, **attributes)
    return h.cast(made, dtype)


@op("aten::rand", "aten::rand_like")
def rand(h, **_):
    return drawn(h, "RandomUniform")


@op("aten::randn", "aten::randn_like")
def randn(h, **_):
    return drawn(h, "RandomNormal")


@op("aten::randint", "aten::randint_like")
def randint(h, high, low=0, **_):
    if isinstance(high, Expr) or isinstance(low, Expr):
        h.refuse("bounds that are only known at run time")
    uniform = drawn(h, "RandomUniform", DType.float32, low=float(low), high=float(high))
    return h.cast(h.emit("Min", h.emit("Floor", uniform), high - 1), h.out.dtype)


@op("aten::normal_functional", "aten::normal")
def normal(h, mean=0.0, std=1.0, **_):
    if not (h.is_value(mean) or h.is_value(std)):
        return drawn(h, "RandomNormal", mean=float(mean), scale=float(std))
    noise = h.emit("Mul", drawn(h, "RandomNormal"), h.tensor(std, h.out.dtype))
    return h.emit("Add", noise, h.tensor(mean, h.out.dtype))


@op("aten::uniform")
def uniform(h, self, from_=0.0, to=1.0, generator=None):
    return drawn(h, "RandomUniform", low=float(from_), high=float(to))


@op("aten::bernoulli")
def bernoulli(h, self, p=None, generator=None):
    chance = self if p is None else h.tensor(p, DType.float32 if not h.out.dtype.is_float else h.out.dtype)
    return h.cast(h.emit("Less", drawn(h, "RandomUniform", chance.type.dtype), chance), h.out.dtype)


@op("aten::exponential")
def exponential(h, self, lambd=1.0, generator=None):
    return h.emit("Div", h.emit("Neg", h.emit("Log", drawn(h, "RandomUniform", low=1e-20, high=1.0))), lambd)


@op("aten::randperm")
def randperm(h, n, **_):
    noise = drawn(h, "RandomUniform", DType.float32)
    return h.cast(h.emit("TopK", noise, h.size(n), outputs=2)[1], h.out.dtype)


@op("aten::multinomial")
def multinomial(h, self, num_samples, replacement=False, generator=None):
    """The exponential race: the largest `log p - log e`, e exponential, are draws without replacement."""
    count = h.static(num_samples, "num_samples")
    if replacement:
        logits = h.emit("Log", self if self.type.rank == 2 else h.unsqueeze(self, [0]))
        made = h.emit("Multinomial", logits, sample_size=count, dtype=DType.int64)
        return made if self.type.rank == 2 else h.emit("Squeeze", made, [0])
    race = h.emit("Log", h.emit("Neg", h.emit("Log", h.emit("RandomUniformLike", self, low=1e-20, high=1.0))))
    return h.emit("TopK", h.emit("Sub", h.emit("Log", self), race), [count], outputs=2)[1]
