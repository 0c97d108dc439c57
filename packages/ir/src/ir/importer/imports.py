"""Imports that are not left half done."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from typing import Any


def import_whole(*names: str) -> None:
    """Import modules; Ctrl-C that comes meanwhile is answered behind them.

    Of a package whose import was broken off its parts stay, and the next import of it fails in a circle: torch._dynamo,
    which the first torch.export.export imports for a second or more.
    """
    missing = [name for name in names if name not in sys.modules]
    if not missing or threading.current_thread() is not threading.main_thread():
        return  # Ctrl-C is told to the main thread alone
    asked: list[tuple[int, Any]] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # nobody asked for an exception
        return
    signal.signal(signal.SIGINT, lambda number, frame: asked.append((number, frame)))
    try:
        for name in missing:
            importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            before(*asked[-1])
