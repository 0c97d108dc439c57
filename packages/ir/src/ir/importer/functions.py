"""A plain function in the place of a module."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch


class FunctionModule(torch.nn.Module):
    """A plain function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        try:
            inspect.signature(fn)
        except ValueError:  # a builtin
            self.forward = lambda *args: fn(*args)
        else:
            self.forward = _as_forward(fn) if hasattr(fn, "__code__") else lambda *args, **kwargs: fn(*args, **kwargs)


def _as_forward(fn: Any) -> Any:
    """The function under the name `forward`: only of frames with that name does torch note the source lines."""
    if not inspect.isfunction(fn) or hasattr(fn, "__wrapped__"):
        return fn
    code = fn.__code__.replace(co_name="forward")
    named = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    named.__kwdefaults__ = fn.__kwdefaults__
    return functools.update_wrapper(named, fn)
