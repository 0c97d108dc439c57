"""The line that a terminal shows while a command works, and the seconds of each stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.status import Status

from ir.cli.printing import Console
from ir.view.facts import short

_EVERY = 0.1  # seconds between two lines
_SETTLED = 0.5  # seconds of writing after which the rate tells something


class Stages:
    """Listens to `ir.progress`. Where the console is no terminal, or quiet, it measures alone."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self.target = ""
        self._status: Status | None = None
        self._name, self._start, self._shown, self._written, self._total = "", 0.0, 0.0, 0, 0

    @contextmanager
    def stage(self, name: str, total: int = 0) -> Iterator[None]:
        """Time a stage under its name; one that comes twice is timed as a whole."""
        self._name, self._written, self._total = f"{self.target} {name}".strip(), 0, total
        self._start = self._shown = time.perf_counter()
        try:
            if self.console.is_terminal and not self.console.quiet:
                with self.console.status(self._name) as self._status:
                    yield
            else:
                yield
        finally:
            self._status = None
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._start

    def wrote(self, count: int) -> None:
        """The line says how much of the file is there, and how long the rest will take."""
        self._written += count
        now = time.perf_counter()
        if self._status is not None and now - self._shown >= _EVERY:
            self._shown = now
            self._status.update(self.line(now - self._start))

    def line(self, taken: float) -> str:
        """What is shown after so many seconds of this stage."""
        said = f"{self._name}: {short(self._written, 'B')}"
        if self._total <= self._written:
            return said
        said += f" of {short(self._total, 'B')}"
        if taken < _SETTLED:
            return said
        left = taken * (self._total - self._written) / self._written
        return f"{said}, {left:.0f} s left"
