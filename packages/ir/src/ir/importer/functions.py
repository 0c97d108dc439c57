"""A plain function in the place of a module."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch


class FunctionModule(torch.nn.Module):
    """A plain function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.forward = _as_forward(fn) if hasattr(fn, "__code__") else _called(fn)


def _called(fn: Any) -> Any:
    """A function that calls this, with its signature where it has one: a builtin need not."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    with contextlib.suppress(TypeError, ValueError):
        vars(forward)["__signature__"] = inspect.signature(fn)
    return forward


def _as_forward(fn: Any) -> Any:
    """The function under the name `forward`: only of frames with that name does torch note the source lines."""
    if not inspect.isfunction(fn) or hasattr(fn, "__wrapped__"):
        return fn
    code = fn.__code__.replace(co_name="forward")
    named = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    named.__kwdefaults__ = fn.__kwdefaults__
    return functools.update_wrapper(named, fn)


def one_by_one(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any) -> Any:
    """`dynamic_shapes` with an entry for each argument, where torch.export has one for all of a model's `*args`."""
    if not args or not isinstance(shapes, (list, tuple)) or not shapes or not _takes_any(model):
        return shapes
    first, *rest = shapes
    flat = len(shapes) == len(args) + len(kwargs) and not _is_of_all(args, first)
    return shapes if flat or not isinstance(first, (list, tuple)) or len(first) != len(args) else (*first, *rest)


def of_call(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any) -> Any:
    """`dynamic_shapes` as torch.export takes it, of what `one_by_one` gives."""
    flat = isinstance(shapes, (list, tuple)) and len(shapes) == len(args) + len(kwargs)
    return (tuple(shapes[: len(args)]), *shapes[len(args) :]) if args and flat and _takes_any(model) else shapes


def _takes_any(model: Any) -> bool:
    """True if the arguments by position are `*args`; of a builtin that does not say what it takes, they are."""
    try:
        first = next(iter(inspect.signature(getattr(model, "forward", model)).parameters.values()), None)
    except (TypeError, ValueError):
        return callable(model)
    return first is not None and first.kind is inspect.Parameter.VAR_POSITIONAL


def _is_of_all(args: tuple[Any, ...], shape: Any) -> bool:
    """True if this is said of `*args`, and not of the one tensor or list among them."""
    if len(args) != 1 or not isinstance(shape, (list, tuple)) or len(shape) != 1:
        return False
    return isinstance(shape[0], (list, tuple) if isinstance(args[0], (list, tuple)) else (list, tuple, Mapping))
