"""One thread at a time where torch keeps global state: tracing, shape rules, the parameters of a reference module."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_TORCH = threading.RLock()


def one_at_a_time(fn: Callable[P, R]) -> Callable[P, R]:
    """The function, which waits while another thread is in one of those so marked."""

    @functools.wraps(fn)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _TORCH:
            return fn(*args, **kwargs)

    return alone


def _fresh() -> None:
    """After a fork: the thread that had it may be gone."""
    global _TORCH
    _TORCH = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh)
