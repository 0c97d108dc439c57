"""torch.autocast around a call of ours: what the model computes there is captured; what comes after is not cast.

torch.export notes an autocast that stands in `forward`, and one around the export nowhere: its program casts where it
happens to run inside of another. A retrace inside of it writes the casts into the graph, as torch.onnx has it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

Casts = tuple[tuple[str, torch.dtype], ...]  # by kind of device
_DEVICES = ("cpu", "cuda", "xpu", "mps")
_AROUND: ContextVar[Casts | None] = ContextVar("around", default=None)  # the outermost call of ours


def around() -> Casts:
    """What is cast around the call of ours that runs; empty outside of all of them."""
    return _AROUND.get() or ()


@contextlib.contextmanager
def casting(casts: Casts) -> Iterator[None]:
    """The model's own code runs in this block, and what torch traces of it; casts of weights are not kept for later."""
    with contextlib.ExitStack() as stack:
        for device, dtype in casts:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        yield


def uncast(fn: Callable[P, R]) -> Callable[P, R]:
    """The function, which runs without the autocast that its caller is in; `around` tells of it."""

    @functools.wraps(fn)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _off():
            return fn(*args, **kwargs)

    return alone


@contextlib.contextmanager
def _off() -> Iterator[None]:
    casts: Casts = tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))
    token: Any = _AROUND.set(casts) if _AROUND.get() is None else None
    try:
        with contextlib.ExitStack() as stack:
            for device, _ in casts:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        if token is not None:
            _AROUND.reset(token)
