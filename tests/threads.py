"""Sweeps over torch's operator database run in a thread of their own, where the stack is short.

Its samples seed the generators of devices that are not there, and torch keeps the formatted stack of each such call:
under pytest that is three quarters of a sweep's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def on_short_stack(test: Callable[[], None]) -> Callable[[], None]:
    """The test, run in a thread of its own."""

    @functools.wraps(test)
    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test).result()

    return run
