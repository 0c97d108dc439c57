"""The parent's side of the child process: a compiled module that crashes takes nothing else along."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ir.errors import RuntimeFailure
from stablehlo_backend.runtime import worker


class Child:
    """One process, in which any number of programs are loaded; it starts at the first request and after a crash."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner = 0  # the process that started it: a fork has no child of its own yet
        self.generation = 0
        self.numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self.owner == os.getpid() and self._process.poll() is None

    def request(self, word: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer.

        Raises:
            RuntimeFailure: the runtime said no, or the process ended.
        """
        with self.lock:
            if not self.alive:
                self._start()
            process = self._process
            assert process is not None and process.stdin is not None and process.stdout is not None
            try:
                pickle.dump((word, *arguments), process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                status, answer = pickle.load(process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                raise RuntimeFailure(f"IREE's process ended with {process.wait()}{self._last_words()}") from error
            except BaseException:  # an interrupt leaves half of an answer in the pipe
                process.kill()
                raise
        if status == "error":
            raise RuntimeFailure(f"IREE refuses to {word} the module: {answer:.1000}")
        return answer

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, worker.__file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        self.owner = os.getpid()
        self.generation += 1

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]:.500}" if lines else ""

    def close(self) -> None:
        """End the process."""
        if self.alive and self._process is not None:
            self._process.kill()
            self._process.wait()


@functools.cache
def shared() -> Child:
    """The child of this process."""
    child = Child()
    atexit.register(child.close)
    return child


class Loaded:
    """A .vmfb in the child, loaded again when the child that had it is gone."""

    def __init__(self, module: Path, archive: Path | None) -> None:
        self.child = shared()
        self.number = next(self.child.numbers)
        self._paths = str(module), None if archive is None else str(archive)
        self._generation = -1

    def run(self, inputs: Sequence[tuple[np.ndarray, str]], kinds: Sequence[str]) -> list[np.ndarray]:
        """The results, arrays of these types.

        Raises:
            RuntimeFailure: the module failed, or the process ended while it ran.
        """
        with self.child.lock:
            self.ensure()
            found: list[np.ndarray] = self.child.request("run", self.number, list(inputs), list(kinds))
        return found

    def ensure(self) -> None:
        """Load it where it is not loaded."""
        with self.child.lock:
            if not self.child.alive or self.child.generation != self._generation:
                self.child.request("load", self.number, *self._paths)
                self._generation = self.child.generation

    def close(self) -> None:
        """Let the child forget the module."""
        with self.child.lock:
            if self.child.alive and self.child.generation == self._generation:
                self.child.request("drop", self.number)
            self._generation = -1
