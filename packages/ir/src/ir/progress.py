"""What is being done: the stages of an export and the bytes of its file, told to who listens (the command line)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Listener(Protocol):
    """Who is told. A stage inside of another is a part of that one, and is not told."""

    def stage(self, name: str, total: int) -> AbstractContextManager[None]:
        """A stage begins, and ends with the block; `total` is about how many bytes it will write, 0 for none."""

    def wrote(self, count: int) -> None:
        """So many bytes more went to the file."""


_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell this listener of what is done in the block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def stage(name: str, total: int = 0) -> Iterator[None]:
    """A part of the work; also a decorator of the function that does it."""
    listener = _LISTENER.get()
    token = _LISTENER.set(_Inside(listener) if listener is not None else None)
    try:
        with listener.stage(name, total) if listener is not None else nullcontext():
            yield
    finally:
        _LISTENER.reset(token)


def wrote(count: int) -> None:
    """Bytes of a file were written; before compression, where there is one."""
    if (listener := _LISTENER.get()) is not None:
        listener.wrote(count)


class _Inside:
    """The listener of a stage that is open: bytes are passed on, stages are not."""

    def __init__(self, outer: Listener) -> None:
        self.outer = outer

    def stage(self, name: str, total: int) -> AbstractContextManager[None]:
        return nullcontext()

    def wrote(self, count: int) -> None:
        self.outer.wrote(count)
