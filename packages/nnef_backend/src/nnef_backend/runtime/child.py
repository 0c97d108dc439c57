"""The child process of tract: started when it is needed, talked to in turn, given up when it dies, hangs or is stopped.

An exchange that is broken off at any point, by an interrupt or by anything else, leaves its rest in the pipes; so the
process is used again only after a whole answer with the number of its request was read.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnef_backend.errors import InputError, TractCrash, TractError, TractTimeout, panic, refused_operation
from nnef_backend.runtime import worker as protocol

WORKER_FILE = Path(protocol.__file__)
STDERR_TAIL = 2000
LIMIT = 600.0  # seconds for a request, unless it is given others
START_LIMIT = 120.0


class Process:
    """A worker's process and the pipes to it.

    An interrupt comes to the main thread at any moment, also inside of threading's and subprocess's own Python, behind
    the taking of a lock and before what would release it; whoever wants that lock next waits for ever. So the process
    is waited for in a thread of its own, and the threads of this file share nothing but atomic operations and locks
    that `with` takes and releases in C.
    """

    def __init__(self, command: list[str], stderr: Any, environment: Mapping[str, str]) -> None:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=protocol.PIPE_BYTES,
            env=environment,
            start_new_session=True,
        )
        assert popen.stdin is not None and popen.stdout is not None
        self.stdin, self.stdout = popen.stdin, popen.stdout
        popen.stdin = popen.stdout = None  # the waiting thread does not hold them: a worker nobody has ends at its EOF
        self.pid = popen.pid
        self._popen = popen
        self._runs = threading.Lock()
        self._runs.acquire()
        _thread.start_new_thread(_wait_for, (popen, self._runs))

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._runs.locked()

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        if hasattr(signal, "SIGKILL"):
            self.send_signal(signal.SIGKILL)
        else:
            self._popen.kill()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        with self._runs:
            return int(self._popen.returncode)

    def disown(self) -> None:
        """After a fork: it is the parent's."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (self.stdin, self.stdout):
            if not stream.closed:
                os.dup2(nothing, stream.fileno())  # bytes that the parent is about to send are not ours to send
        os.close(nothing)
        self._popen.returncode = 0


def _wait_for(popen: subprocess.Popen[bytes], runs: threading.Lock) -> None:
    popen.wait()
    runs.release()


class _Alarm:
    """The moment at which a process is ended, unless `decided` is taken before; who takes it decides."""

    def __init__(self, process: Process, due: float) -> None:
        self.process, self.due = process, due
        self.decided = threading.Lock()


class Watchdog:
    """Ends a process that takes too long; its thread sleeps until the next moment that may count."""

    def __init__(self) -> None:
        self.expired = False
        self._alarm: _Alarm | None = None
        self._wakes: float | None = None  # None where no thread runs
        self._sooner: queue.SimpleQueue[None] = queue.SimpleQueue()

    def arm(self, process: Process, seconds: float | None) -> None:
        """Kill the process in so many seconds, unless `disarm` comes first."""
        self.disarm()
        self.expired = False
        if seconds is None:
            return
        due = time.monotonic() + seconds
        self._alarm = _Alarm(process, due)
        wakes = self._wakes  # behind the alarm, which the thread reads behind this
        if wakes is None:
            _thread.start_new_thread(self._watch, ())
        elif due < wakes:
            self._sooner.put(None)

    def disarm(self) -> None:
        """The process may go on; `expired` if it was too late for that."""
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            self.expired = not alarm.decided.acquire(blocking=False)

    def _watch(self) -> None:
        while True:
            due = self._wakes = self._due()
            if self._due() != due:
                continue
            if due is None:
                return
            with contextlib.suppress(queue.Empty):
                self._sooner.get(timeout=max(0.0, due - time.monotonic()))
            self._end()

    def _due(self) -> float | None:
        alarm = self._alarm
        return None if alarm is None or alarm.decided.locked() else alarm.due

    def _end(self) -> None:
        alarm = self._alarm
        if alarm is not None and alarm.due <= time.monotonic() and alarm.decided.acquire(blocking=False):
            alarm.process.kill()


class Child:
    """A process that holds tract and any number of programs; it starts when it is first needed.

    Calls from several threads wait for one another; use one a thread to run side by side. A forked process has the
    object, too, and starts a process of its own: a pipe has room for one talker only.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._numbers = 0
        self._requests = 0
        self._kept: list[Any] = []
        self._fresh()
        _ALL.add(self)

    def _fresh(self) -> None:
        self.lock = threading.RLock()
        self._process: Process | None = None
        self._stderr: Any = None
        self._midway = False  # an exchange began and did not end
        self._dropped: list[int] = []
        self._watchdog = Watchdog()

    @property
    def alive(self) -> bool:
        """Whether the process runs and can be asked."""
        return self._process is not None and not self._midway and self._process.alive

    def start(self) -> None:
        """Start the process now rather than at the first request.

        Raises:
            TractError: it does not come up, as where tract is not installed.
        """
        with self.lock:
            if self.alive:
                return
            self.close()
            self._midway = True
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
            # As a script, and not as a module: the package around the file would bring torch with it.
            environment = {
                **os.environ,
                "PYTHONSAFEPATH": "1",
                "RUST_BACKTRACE": "1",
                "RUST_LIB_BACKTRACE": "0",
            }
            process = self._process = Process([sys.executable, str(WORKER_FILE)], self._stderr, environment)
            protocol.widen(process.stdin.fileno())
            protocol.widen(process.stdout.fileno())
            self.generation += 1
            self._watchdog.arm(process, START_LIMIT)
            try:
                protocol.read_frame(process.stdout)
            except (EOFError, ValueError, OSError) as error:
                self._watchdog.disarm()
                why = f"within {START_LIMIT:g} s" if self._watchdog.expired else self._stderr_text()[-STDERR_TAIL:]
                self.close()
                raise TractError(f"the process for tract does not start: {why}") from error
            finally:
                self._watchdog.disarm()
            self._midway = self._watchdog.expired

    def close(self) -> None:
        """End the process; programs start it again at their next call."""
        with self.lock:
            process = self._process
            if process is not None:
                process.kill()
                for stream in (process.stdin, process.stdout):
                    with contextlib.suppress(OSError):  # unsent bytes of a request whose reader is gone
                        stream.close()
                process.wait()
                self._process = None
            if self._stderr is not None:
                self._stderr.close()
                self._stderr = None
            self._dropped.clear()

    def number(self) -> int:
        with self.lock:
            self._numbers += 1
            return self._numbers

    def drop(self, number: int) -> None:
        # Called by the garbage collector, too, that is at any moment: it only notes, the next request tells.
        self._dropped.append(number)

    def request(
        self,
        header: dict[str, Any],
        arrays: Iterable[np.ndarray],
        path: Path,
        doing: str,
        timeout: float | None,
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        with self.lock:
            self.start()
            process = self._process
            assert process is not None
            dropped, self._dropped = self._dropped, []
            self._stderr.seek(0)
            self._stderr.truncate()
            self._requests += 1
            header = {**header, "id": self._requests, "drop": dropped}
            answer, results = self._exchange(process, header, list(arrays), path, doing, timeout)
        if not answer["ok"]:
            raise TractError(
                f"{doing} {path} in tract: {answer['error']:.2000}",
                model=str(path),
                operation=refused_operation(answer["error"]),
            )
        return answer, results

    def _exchange(
        self,
        process: Process,
        header: dict[str, Any],
        arrays: list[np.ndarray],
        path: Path,
        doing: str,
        timeout: float | None,
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        try:
            protocol.check(arrays)
        except TypeError as error:
            raise InputError(f"{path}: {error}") from error
        self._midway = True
        self._watchdog.arm(process, timeout)
        try:
            protocol.write_frame(process.stdin, header, arrays)
            answer, results = protocol.read_frame(process.stdout)
        except (EOFError, OSError) as error:
            self._watchdog.disarm()
            if self._watchdog.expired:
                self.close()
                how = "give another timeout=, or None, where the model is loaded or called"
                raise TractTimeout(
                    f"{doing} {path} in tract took more than {timeout:.3g} s, so its process was ended ({how})",
                    model=str(path),
                ) from error
            raise self._crash(process, header, path, doing) from None
        finally:
            self._watchdog.disarm()
        if answer.pop("id", None) != header["id"]:
            self.close()
            raise TractError(f"{doing} {path} in tract: what came back answers another request", model=str(path))
        self._midway = self._watchdog.expired  # though it has answered, it is being ended
        return answer, results

    def _crash(self, process: Process, header: dict[str, Any], path: Path, doing: str) -> TractCrash:
        code = process.wait()
        tail = self._stderr_text()
        self.close()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        reason, operation = panic(tail)
        if re.search("memory allocation of|failed to allocate", tail):
            given = header.get("memory")
            reason = "it takes more memory than the machine has" if given is None else (
                f"it takes more than the {given >> 20} MB of memory that it is given; if that is meant, "
                "load the model with memory=None"
            )  # fmt: skip
        if not reason and doing == "loading" and code == -signal.SIGSEGV:  # its stack ends without a word
            reason = "its text may nest too deep for tract's parser, or a fragment may call itself"
        where = f" in {operation}" if operation else ""
        printed = tail[:STDERR_TAIL].rstrip()
        message = f"{doing} {path}: tract died ({cause}){where}: {reason or 'no panic message'}"
        message += f"\n{printed}" if printed and not reason else ""
        crash = TractCrash(message, model=str(path), operation=operation)
        crash.exit_code, crash.printed = code, printed
        return crash

    def _stderr_text(self) -> str:
        self._stderr.seek(0)
        return str(self._stderr.read().decode(errors="replace"))

    def _forget(self) -> None:
        """After a fork: the process and its pipes are the parent's, and a lock may be held by a thread that is gone."""
        if self._process is not None:
            self._process.disown()
            self._kept.append((self._process, self._stderr))
        self._fresh()


_ALL: weakref.WeakSet[Child] = weakref.WeakSet()


def _forked() -> None:
    for child in list(_ALL):
        child._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
