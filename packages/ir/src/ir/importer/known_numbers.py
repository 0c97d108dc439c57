"""Numbers that a model keeps in tensors without axes: sizes divided by torch.div, strides and pads held as buffers.

Read back with `int()`, or given as a size, such a number is one that data decides to torch.export, which then does not
know what the code asks of it. Here it is followed beside the tensor, as the symbolic size or the buffer's value that it
is, and stands where the code reads it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ir.importer.swapping import swapped

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_READ = frozenset({"item", "__int__", "__index__", "__float__", "__bool__", "tolist"})
_JOINS = frozenset({"cat", "concat", "stack", "hstack", "vstack", "broadcast_tensors", "meshgrid"})


def _ceil(x: Any) -> Any:
    return torch.sym_int(math.ceil(x)) if isinstance(x, torch.SymFloat) else math.ceil(x)


def _floor(x: Any) -> Any:
    return torch.sym_int(math.floor(x)) if isinstance(x, torch.SymFloat) else math.floor(x)


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    if rounding_mode == "trunc" and not (a >= 0 and b > 0):  # sizes are not negative
        raise NotImplementedError
    return a // b


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else torch.sym_max(x, min)
    return x if max is None else torch.sym_min(x, max)


def _reversed(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: fn(b, a)


_RULES: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "rsub": _reversed(operator.sub), "mul": operator.mul, "div": _div,
    "true_divide": operator.truediv, "truediv": operator.truediv, "rtruediv": _reversed(operator.truediv),
    "radd": operator.add, "rmul": operator.mul, "rdiv": _reversed(operator.truediv), "multiply": operator.mul,
    "floor_divide": operator.floordiv, "floordiv": operator.floordiv, "rfloordiv": _reversed(operator.floordiv),
    "remainder": operator.mod, "mod": operator.mod, "ceil": _ceil, "floor": _floor, "neg": operator.neg,
    "clamp": _clamp, "clip": _clamp, "maximum": torch.sym_max, "minimum": torch.sym_min,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


class KnownNumbers(TorchFunctionMode):
    """Follows the numbers of tensors without axes; `known` has those to begin with, `read` gets ids of those read."""

    def __init__(self, known: Mapping[int, Any], read: set[int]) -> None:
        super().__init__()
        self._known: dict[int, tuple[Any, Any]] = {}  # by id: the tensor, which keeps the id its own, and the number
        self._first = dict(known)
        self._read = read

    def number(self, x: Any) -> Any:
        """What a tensor is known to hold, or a number itself; None for anything else."""
        if isinstance(x, _NUMBERS):
            return x
        if id(x) in self._known:
            return self._known[id(x)][1]
        if id(x) in self._first:
            self._read.add(id(x))
        return self._first.get(id(x))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _READ and len(args) == 1 and (known := self.number(args[0])) is not None:
            return bool(known) if name == "__bool__" else known
        holds = bool(args) and (id(args[0]) in self._known or id(args[0]) in self._first)
        if holds and _writes(name):  # other tensors may be the same memory
            self._known.clear()
            self._first.clear()
        if name not in _JOINS:
            first = 0 if name in _FACTORIES else 1  # of the sizes; before them stands the tensor itself
            args = tuple(self._sizes(a, top=name not in _SIZED or i < first) for i, a in enumerate(args))
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.dim() == 0:
            self._follow(name.strip("_"), args, kwargs, result)
        return result

    def _sizes(self, arg: Any, top: bool = False) -> Any:
        """An argument with numbers for the tensors among sizes and ends of slices."""
        if isinstance(arg, (tuple, list)):
            return type(arg)(self._sizes(a) for a in arg) if type(arg) in (tuple, list) else arg
        if isinstance(arg, slice):
            return slice(*(self._sizes(a) for a in (arg.start, arg.stop, arg.step)))
        known = self.number(arg) if isinstance(arg, torch.Tensor) and not top else None
        return arg if known is None else known

    def _follow(self, name: str, args: Any, kwargs: Any, result: torch.Tensor) -> None:
        values = [self.number(a) for a in args]
        if name in ("to", "long", "int", "float", "clone", "detach", "contiguous", "type") and values:
            found = values[0] if values[0] is None else _cast(values[0], result.dtype)
        elif name in ("tensor", "scalar_tensor", "as_tensor") and values:
            found = values[0]
        elif name in _RULES and all(v is not None for v in values) and kwargs.keys() <= {"rounding_mode", "min", "max"}:
            try:
                found = _RULES[name](*values, **{k: self._sizes(a) for k, a in kwargs.items()})
            except (NotImplementedError, TypeError, ZeroDivisionError):
                found = None
        else:
            found = None
        if found is not None:
            self._known[id(result)] = result, found


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or (name.startswith("__i") and name not in _READ)


_FACTORIES = frozenset({"zeros", "ones", "empty"})
_SIZED = _FACTORIES | {
    "view",
    "reshape",
    "expand",
    "repeat",
    "new_zeros",
    "new_ones",
    "new_empty",
    "narrow",
    "unflatten",
}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if dtype.is_floating_point:
        return torch.sym_float(value)
    if dtype is torch.bool or isinstance(value, (bool, torch.SymBool)):
        return None
    return _floor(value) if isinstance(value, (float, torch.SymFloat)) and value >= 0 else value


@contextlib.contextmanager
def followed(model: torch.nn.Module) -> Iterator[set[str]]:
    """Inside of the block the model runs with its numbers followed, those of buffers and sizes.

    Yields:
        the names of the buffers whose numbers the model has read.
    """
    held = {n: b.item() for n, b in model.named_buffers() if b.dim() == 0 and not (b.is_meta or b.is_complex())}
    read: set[str] = set()
    forward = model.forward

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        names = {id(b): n for n, b in model.named_buffers() if n in held}
        used: set[int] = set()
        try:
            with KnownNumbers({i: held[n] for i, n in names.items()}, used):
                return forward(*args, **kwargs)
        finally:
            read.update(names[i] for i in used)

    with swapped(model, "forward", call):
        yield read
