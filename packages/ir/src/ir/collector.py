"""Python's cyclic garbage collector, held back while a graph is built.

What is built then is kept, and the collector goes through all of it again and again: a third of the time that an export
of 20,000 nodes takes (benchmarks/scaling.md).
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOCK = threading.Lock()
_inside = 0  # calls under way, of all threads
_was_on = False


def held_back(fn: Callable[P, R]) -> Callable[P, R]:
    """The function, in which no collection runs; the last of several calls switches the collector on again."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _enter()
        try:
            return fn(*args, **kwargs)
        finally:
            _leave()

    return call


def _enter() -> None:
    global _inside, _was_on
    with _LOCK:
        if _inside == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1


def _leave() -> None:
    global _inside
    with _LOCK:
        _inside -= 1
        if _inside == 0 and _was_on:
            gc.enable()
