"""Attributes of torch's that are others for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def swapped(owner: Any, name: str, made: Any) -> Iterator[None]:
    """Inside of the block an attribute is another one; what the owner did not have of its own is gone after it."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, made)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
