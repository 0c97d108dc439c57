"""Trials in child processes: a crash or a hang there is an answer, and the caller lives on."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ir.debug.search import Verdict
from ir.debug.spawned import Worker

FORKS = hasattr(os, "fork")


class Trials:
    """Functions that are each run in a child process.

    A fork sees handlers and weights as they are, whatever can be pickled. Where the system has none, one other process
    is started and asked again and again; it is sent `shared` once, and what it cannot be sent is an error.
    """

    def __init__(self, *shared: Any) -> None:
        self.shared = shared
        self._worker: Worker | None = None
        self.count = 0

    def run(self, seconds: float, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn` returns, or the Verdict of its crash, its hang or its exception.

        Raises:
            ExportError: what it is given cannot be sent to a process that is started anew.
        """
        self.count += 1
        if FORKS:
            return in_child(partial(fn, *args), seconds)
        worker, self._worker = self._worker or Worker(self.shared), None
        answer = worker.ask(seconds, fn, *args)
        if worker.lives:
            self._worker = worker
        return answer

    def close(self) -> None:
        """End the process that waits for more."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def in_child(fn: Callable[[], Any], seconds: float) -> Any:
    """What `fn` returns, from a fork of this process, or the Verdict of its crash, its hang or its exception."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch, which the child does not use
        pid = os.fork()
    if pid == 0:
        os.close(read)
        _run(fn, write)
    os.close(write)
    try:
        return _answer(pid, read, seconds)
    finally:
        os.close(read)


def _run(fn: Callable[[], Any], write: int) -> None:
    """The child: compute, answer, end without a trace."""
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, sys.stdout.fileno() if _has_number(sys.stdout) else 1)
        os.dup2(quiet, 2)
        faulthandler.disable()  # a crash is what the caller is told
        torch.set_num_threads(1)  # the others are threads of the parent
        try:
            answer = fn()
        except Exception as error:
            answer = Verdict("error", type(error).__name__, str(error))
        with open(write, "wb") as stream:
            pickle.dump(answer, stream)
    finally:
        os._exit(0)


def _has_number(stream: Any) -> bool:
    with contextlib.suppress(Exception):
        return bool(stream.fileno())
    return False


def _answer(pid: int, read: int, seconds: float) -> Any:
    deadline, said = time.monotonic() + seconds, b""
    while (rest := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([read], [], [], rest)
        piece = os.read(read, 1 << 20) if ready else None
        if piece == b"":
            break
        said += piece or b""
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Verdict.hang(seconds)
    _, status = os.waitpid(pid, 0)
    return pickle.loads(said) if said else Verdict.crash(os.waitstatus_to_exitcode(status))
