"""New tensors: filled, counted, random."""

from __future__ import annotations

import math

from ir.dims import Expr
from ir.types import DType
from onnx_backend.building.kernels import runs
from onnx_backend.registry import register as op


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
    if isinstance(step, int) and step > 0 and not h.may_be_negative(start):
        return h.cast(h.range(start, end, step, size=size, dtype=work), dtype)
    # onnxruntime (1.31) makes a slice of a Gather by a Range, and reads numbers below 0 in it as counted from the end
    steps = h.range(0, size, size=size, dtype=work)
    steps = steps if step == 1 else h.emit("Mul", steps, h.tensor(step, work))
    return h.cast(h.emit("Add", steps, h.tensor(start, work)), dtype)


@op("aten::linspace")
def linspace(h, start, end, steps, **_):
    count = h.static(steps, "the number of steps")
    work = DType.float64 if h.out.dtype is DType.float64 or not h.out.dtype.is_float else DType.float32
    places = h.range(0, count, size=count)
    share = h.emit("Div", h.cast(places, work), max(count - 1, 1))
    gap = (
        h.emit("Sub", h.tensor(end, work), h.tensor(start, work))
        if h.is_value(start) or h.is_value(end)
        else end - start
    )
    return h.cast(h.emit("Add", h.emit("Mul", share, gap), h.tensor(start, work)), h.out.dtype)


@op("aten::logspace")
def logspace(h, start, end, steps, base=10.0, **_):
    count = h.static(steps, "the number of steps")
    if any(h.is_value(x) or isinstance(x, Expr) for x in (start, end)):
        h.refuse("start or end is only known at run time; use numbers, or base ** torch.linspace")
    step = (end - start) / max(count - 1, 1)
    exact = [base ** (start + i * step) for i in range(count)]
    return h.const([int(x) for x in exact] if h.out.dtype.is_integer else exact, h.out.dtype)


@op("aten::eye")
def eye(h, **_):
    work = h.out.dtype if h.out.dtype in (DType.float32, DType.float64, DType.int32) else DType.int64
    return h.cast(h.emit("EyeLike", h.full(h.out.shape, 0, DType.int64), dtype=work), h.out.dtype)


# -- chance ------------------------------------------------------------------------------------------------------------


def uniform_like(h, like, low=0.0, high=1.0):
    """Random numbers in [low, high) in the shape of a float tensor."""
    if runs("RandomUniformLike", h.opset):
        return h.emit("RandomUniformLike", like, low=low, high=high)
    # onnxruntime's random ops end at opset 21, its Dropout does not: 24 tosses of a coin make a fraction
    shape = (*like.type.shape, 24)
    coins = h.emit("Dropout", h.full(shape, 1.0, DType.float32), h.const(0.5, DType.float32), h.const(True),
                   outputs=2, shape=shape)[1]  # fmt: skip
    weights = h.const([2.0**-i for i in range(1, 25)], DType.float32)
    share = h.cast(h.emit("MatMul", h.cast(coins, DType.float32), weights), like.type.dtype)
    share = share if high - low == 1 else h.emit("Mul", share, high - low)
    return share if low == 0 else h.emit("Add", share, low)


def uniform_numbers(h, low=0.0, high=1.0, dtype=None):
    """Random numbers of the result's shape, whose sizes may be known at run time only."""
    dtype = dtype or h.out.dtype
    work = DType.float64 if dtype is DType.float64 else DType.float32
    return h.cast(uniform_like(h, h.full(h.out.shape, 0.0, work), low, high), dtype)


def normal_numbers(h, mean=0.0, std=1.0):
    work = DType.float64 if h.out.dtype is DType.float64 else DType.float32
    like = h.full(h.out.shape, 0.0, work)
    if runs("RandomNormalLike", h.opset):
        return h.cast(h.emit("RandomNormalLike", like, mean=mean, scale=std), h.out.dtype)
    radius = h.emit("Sqrt", h.emit("Mul", h.emit("Log", uniform_like(h, like, 2.0**-25, 1.0)), -2 * std**2))
    angle = uniform_like(h, like, 0.0, 2 * math.pi)  # Box and Muller
    return h.cast(h.emit("Add", h.emit("Mul", radius, h.emit("Cos", angle)), mean), h.out.dtype)


@op("aten::rand", "aten::rand_like")
def rand(h, **_):
    return uniform_numbers(h)


@op("aten::randn", "aten::randn_like")
def randn(h, **_):
    return normal_numbers(h)


@op("aten::randint", "aten::randint_like")
def randint(h, high, low=0, **_):
    if isinstance(high, Expr) or isinstance(low, Expr):
        h.refuse("low or high is only known at run time; use numbers")
    uniform = uniform_numbers(h, float(low), float(high), DType.float32)
    return h.cast(h.emit("Min", h.emit("Floor", uniform), high - 1), h.out.dtype)


@op("aten::normal_functional", "aten::normal")
def normal(h, mean=0.0, std=1.0, **_):
    if not (h.is_value(mean) or h.is_value(std)):
        return normal_numbers(h, float(mean), float(std))
    noise = h.emit("Mul", normal_numbers(h), h.tensor(std, h.out.dtype))
    return h.emit("Add", noise, h.tensor(mean, h.out.dtype))


@op("aten::uniform")
def uniform(h, self, from_=0.0, to=1.0, generator=None):
    return uniform_numbers(h, float(from_), float(to))


@op("aten::bernoulli")
def bernoulli(h, self, p=None, generator=None):
    chance = self if p is None else h.tensor(p, DType.float32 if not h.out.dtype.is_float else h.out.dtype)
    return h.cast(h.emit("Less", uniform_numbers(h, dtype=chance.type.dtype), chance), h.out.dtype)


@op("aten::exponential")
def exponential(h, self, lambd=1.0, generator=None):
    return h.emit("Div", h.emit("Neg", h.emit("Log", uniform_numbers(h, 2.0**-25, 1.0))), lambd)


@op("aten::randperm")
def randperm(h, n, **_):
    noise = uniform_numbers(h, dtype=DType.float32)
    return h.cast(h.emit("TopK", noise, h.size(n), outputs=2)[1], h.out.dtype)


@op("aten::multinomial")
def multinomial(h, self, num_samples, replacement=False, generator=None):
    """The largest `log p - log e`, e exponential, is a draw; the largest few are draws without replacement."""
    count = h.static(num_samples, "num_samples")
    chances = h.emit("Log", self)
    if replacement:
        rank = self.type.rank
        chances = h.expand(h.unsqueeze(chances, [rank - 1]), [*self.type.shape[:-1], count, self.type.shape[-1]])
    race = h.emit("Log", h.emit("Neg", h.emit("Log", uniform_like(h, chances, 2.0**-25, 1.0))))
    race = h.emit("Sub", chances, race)
    if replacement:
        return h.emit("ArgMax", race, axis=-1, keepdims=False, shape=h.out.shape)
    return h.emit("TopK", race, [count], outputs=2)[1]
