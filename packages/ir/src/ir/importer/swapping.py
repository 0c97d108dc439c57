"""Attributes of torch's that are others for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def swapped(owner: Any, name: str, made: Any) -> Iterator[None]:
    """Inside of the block an attribute is another one."""
    before = getattr(owner, name)
    setattr(owner, name, made)
    try:
        yield
    finally:
        setattr(owner, name, before)
