"""Tensors out of nothing: fills, ranges, triangles of positions; chance is refused."""

from __future__ import annotations

import numpy as np

from ir.dims import Expr, product
from ir.handlers.create import filled
from ir.helper import numpy_dtype
from ir.types import DType
from nnef_backend.registry import register as op

_LARGEST = 2**26  # elements that a file is to hold for a call that takes none

# -- ranges ----------------------------------------------------------------------------------------------------------


@op("aten::arange")
def arange(h, end=None, start=0, step=1, **options):
    (count,), dtype = h.out.shape, h.out.dtype
    _check_stored(h, count)
    if all(not isinstance(v, Expr) for v in (start, step, count)):
        return h.constant((start + step * np.arange(count)).astype(numpy_dtype(dtype)))
    work = DType.int64 if dtype.is_integer else dtype
    made = h.cast(h.positions(count), work)
    made = made if step == 1 else h.emit("mul", made, h.tensor(step, work))
    made = made if start == 0 else h.emit("add", made, h.tensor(start, work))
    return h.cast(made, dtype)


@op("aten::linspace")
def linspace(h, start, end, steps, **options):
    _check_stored(h, *h.out.shape)
    if any(h.is_value(x) or isinstance(x, Expr) for x in (start, end)) and h.out.dtype.is_float:
        return _computed_line(h, start, end, h.static(steps, "the number of steps"))
    return h.constant(_line(h, start, end, steps).astype(numpy_dtype(h.out.dtype)))


@op("aten::logspace")
def logspace(h, start, end, steps, base=10.0, **options):
    _check_stored(h, *h.out.shape)
    return h.constant((float(base) ** _line(h, start, end, steps)).astype(numpy_dtype(h.out.dtype)))


def _check_stored(h, count):
    if isinstance(count, int) and count > _LARGEST:
        h.refuse(f"its {count} numbers would be a constant in the file; make them where they are fewer, or an input")


def _computed_line(h, start, end, count):
    """The first half from the start and the second from the end, as torch rounds it."""
    first, last = (h.tensor(x, h.out.dtype) for x in (start, end))
    step = h.emit("div", h.emit("sub", last, first), max(count - 1, 1))
    places = np.arange(count, dtype=numpy_dtype(h.out.dtype))
    half = max(count // 2, min(count, 1))  # a line of one place is its start
    head = h.emit("add", first, h.emit("mul", step, h.constant(places[:half])))
    tail = h.emit("sub", last, h.emit("mul", step, h.constant(places[: count - half][::-1].copy())))
    return head if count == half else h.concat([head, tail], 0)


def _line(h, start, end, steps):
    if h.is_value(start) or h.is_value(end) or isinstance(start, Expr) or isinstance(end, Expr):
        h.refuse("start or end is only known at run time; use numbers, or base ** torch.linspace")
    return np.linspace(start, end, h.static(steps, "the number of steps"))


# -- triangles -------------------------------------------------------------------------------------------------------


@op("aten::eye")
def eye(h, n=None, m=None, **options):
    if h.out.is_static and product(h.out.shape) <= _LARGEST:
        return h.constant(np.eye(*h.out.shape, dtype=numpy_dtype(h.out.dtype)))
    upper = h.emit("tract_core_trilu", filled(h, 1), 0, upper=True)
    return h.emit("tract_core_trilu", upper, 0, upper=False)


# -- chance ----------------------------------------------------------------------------------------------------------


@op("aten::rand", "aten::randn", "aten::rand_like", "aten::randn_like", "aten::randint", "aten::randint_like",
    "aten::randperm", "aten::bernoulli", "aten::normal", "aten::normal_functional", "aten::multinomial",
    "aten::uniform", "aten::exponential", "aten::native_dropout")  # fmt: skip
def chance(h, p=None, **options):
    if p in (0, 1) and h.node.op == "aten::bernoulli":
        return filled(h, p)
    refuse_chance(h, "draw them outside of the model and give them to it as an input")


def refuse_chance(h, way_out):
    h.refuse(f"{'tract' if h.target.tract else 'NNEF'} draws no random numbers; {way_out}")


@op("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout")
def dropout(h, input, p, train):
    if not train or p == 0:
        return input
    if p == 1 and h.node.op != "aten::alpha_dropout":
        return filled(h, 0)
    refuse_chance(h, "export the model after model.eval()")
