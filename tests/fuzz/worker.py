"""Programs in a child process: it may crash or hang, and another one takes its place.

A request is a line of JSON, {"seed", "number"} or {"program"}; the answer "drawn" once the program is there, a line for
each outcome, then "done". A process that ends before "drawn" is torch's, whose own run the program is drawn by, and so
is one that ends or takes too long for no target, which runs the program in torch alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 60.0  # seconds of processor time for one program, or ten times as long where it waits
RENEWED = 150  # programs until the child is replaced: torch.export keeps some memory of each


class Worker:
    """A child process that checks programs."""

    def __init__(self, targets: Sequence[str]) -> None:
        self.targets = list(targets)
        self.done = 0
        self.drawn = False
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The outcomes as dicts; a child that dies or takes too long is one of them, "foreign"."""
        if self.process is None or self.process.poll() is not None or self.done >= RENEWED:
            self._start()
        assert self.process is not None and self.process.stdin is not None
        self.done += 1
        self.drawn = False
        outcomes: list[dict[str, Any]] = []
        try:
            self.process.stdin.write(json.dumps(request | {"targets": self.targets}).encode() + b"\n")
            self.process.stdin.flush()
            for line in self._lines():
                outcomes.append(line)
            return outcomes
        except (EOFError, BrokenPipeError, TimeoutError) as error:
            self.close()
            code = self.process.returncode
            ends = isinstance(error, EOFError)
            if not self.targets or (ends and not self.drawn) or _fails_in_torch(request):
                what = f"torch ended ({code})" if ends else "torch does not end"
                return [{"target": "torch", "kind": "invalid", "detail": what, "sizes": None}]
            what = f"no answer in {LIMIT:.0f} s" if isinstance(error, TimeoutError) else f"process ended ({code})"
            answered = {o["target"] for o in outcomes}
            missing = [t for t in self.targets if t not in answered]
            if not outcomes and isinstance(error, EOFError):
                missing = missing[:1]
            return outcomes + [{"target": t, "kind": "foreign", "detail": what, "sizes": None} for t in missing[:1]]

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self.process is not None and self.process.stdout is not None
        buffer, handle = b"", self.process.stdout.fileno()
        deadline, spent = time.monotonic() + 10 * LIMIT, _processor_time(self.process.pid) + LIMIT
        while True:
            while not select.select([handle], [], [], 1.0)[0]:
                if time.monotonic() > deadline or _processor_time(self.process.pid) > spent:
                    raise TimeoutError
            part = os.read(handle, 1 << 16)
            if not part:
                raise EOFError
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                if line == b"done":
                    return
                if line == b"drawn":
                    self.drawn = True
                else:
                    yield json.loads(line)

    def _start(self) -> None:
        self.close()
        self.done = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def _fails_in_torch(request: dict[str, Any]) -> bool:
    """True of a program that torch itself does not run in time, as one with a polynomial of degree 2**30, or that ends
    the process in torch's own kernel, as the least integer divided by -1 does.
    """
    worker = Worker([])
    try:
        return bool(worker.ask(request))
    finally:
        worker.close()


def _processor_time(pid: int) -> float:
    """Seconds that a process and those below it have used: other work on the machine makes no program slow."""
    place = Path(f"/proc/{pid}")
    try:
        user, system, *of_ended = (place / "stat").read_text().rpartition(")")[2].split()[11:15]
        below = [int(child) for task in (place / "task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:  # it ended meanwhile
        return 0.0
    ticks = sum(map(int, (user, system, *of_ended)))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(_processor_time, below))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    logging.disable(logging.CRITICAL)
    from tests.fuzz.check import WAYS, check, run
    from tests.fuzz.generate import program
    from tests.fuzz.program import Input, Program

    for line in sys.stdin:
        request = json.loads(line)
        if "number" in request:
            one, way = program(request["seed"], request["number"]), WAYS[request["number"] % len(WAYS)]
        else:
            fields = request["program"]
            inputs = tuple(Input(**{**i, "shape": tuple(i["shape"])}) for i in fields["inputs"])
            one = Program(inputs, tuple(fields["members"]), tuple(fields["steps"]), fields["result"])
            way = request["way"]
        print("drawn", file=answers, flush=True)
        if not request["targets"]:
            run(one)
        for outcome in check(one, request["targets"], way) if request["targets"] else ():
            print(json.dumps(asdict(outcome)), file=answers, flush=True)
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
