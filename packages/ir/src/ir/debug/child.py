"""Trials in a child process: a crash or a hang there is an answer, and the caller lives on."""

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
from typing import Any

import torch

from ir.debug.search import Verdict


def in_child(fn: Callable[[], Any], seconds: float) -> Any:
    """What `fn` returns, from a fork of this process, or the Verdict of its crash, its hang or its exception.

    A fork sees handlers and weights as they are, whatever can be pickled. Where the system has none `fn` runs here.
    """
    if not hasattr(os, "fork"):
        return fn()
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
        return Verdict("hang", text=f"no answer in {seconds:.0f} s")
    _, status = os.waitpid(pid, 0)
    if said:
        return pickle.loads(said)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    name = signal.Signals(number).name if number else f"exit code {os.waitstatus_to_exitcode(status)}"
    return Verdict("crash", name, f"the process ended with {name}")
