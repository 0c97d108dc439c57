"""The parent's side of the child process: a compiled module that crashes takes nothing else along."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from typing import Any

from ir.errors import RuntimeFailure
from stablehlo_backend.runtime import worker


class Child:
    """One process, which keeps the programs that it has run; it starts at the first request and after a crash."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._owner = 0  # the process that started it: a fork has no child of its own yet
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Any = None
        self._errors: Any = None

    def request(self, word: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer: see `worker.Programs`.

        Raises:
            RuntimeFailure: the runtime said no, or the process ended.
        """
        with self.lock:
            process = self._running()
            try:
                self._pipe.send((word, *arguments))
                status, answer = self._pipe.recv()
            except (OSError, EOFError) as error:
                code = process.wait()
                self._errors.seek(0)
                words = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
                crash = RuntimeFailure(": ".join([f"IREE's process ended with {code}", *words])[:600])
                crash.exit_code = code
                raise crash from error
            except BaseException:  # an interrupt leaves half of an answer in the pipe
                process.kill()
                raise
        if status == "error":
            raise RuntimeFailure(f"IREE refuses to {word} the module: {answer:.1000}")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            self._pipe, other = multiprocessing.Pipe()
            command = [sys.executable, worker.__file__, str(other.fileno())]
            told = {"stdin": subprocess.DEVNULL, "stdout": self._errors, "stderr": self._errors}
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], start_new_session=True, **told)
            self._owner = os.getpid()
            other.close()
        return self._process

    def close(self) -> None:
        """End the process."""
        with self.lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.kill()
                self._process.wait()


@functools.cache
def shared() -> Child:
    """The child of this process."""
    child = Child()
    atexit.register(child.close)
    return child
