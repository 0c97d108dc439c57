"""The watch over mutants: a child process makes and tries them, and its parent kills it where one takes too long.

Memory is the largest resident set while a mutant is tried, of the child and of the processes that it started (tract's):
what torch and onnxruntime take by being imported counts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.mutants.kind import CANARY, Kind

SECONDS, MEGABYTES = 10, 1024
START_SECONDS = 120  # for what is imported, and the whole files
ROOT = Path(__file__).parents[3]
KINDS = ("pt2", "safetensors", "fragments", "archives", "onnx")


@dataclass
class Summary:
    """Outcomes by what was done to the file, those that must not be, whether code ran, and the most memory."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    bad: list[dict[str, Any]] = field(default_factory=list)
    ran: bool = False
    megabytes: tuple[int, int] = (0, 0)  # of the child, and of a process that it started

    def of(self, *words: str) -> int:
        """How many ended in one of these."""
        return sum(n for (_, outcome), n in self.counts.items() if outcome in words)


def summary(kind: str, count: int, seed: object) -> Summary:
    """Make and try so many mutants of a kind."""
    found = Summary()
    with tempfile.TemporaryDirectory() as folder:
        for outcome in run(kind, count, seed, Path(folder)):
            found.counts[outcome["kind"], outcome["outcome"].partition(":")[0]] += 1
            if outcome["outcome"][:1].isupper():
                found.bad.append(outcome)
            own, others = found.megabytes
            found.megabytes = max(own, outcome["memory"][0]), max(others, outcome["memory"][1])
        found.ran = os.path.lexists(Path(folder) / CANARY)
    return found


def run(kind: str, count: int, seed: object, folder: Path) -> Iterator[dict[str, Any]]:
    """Every mutant's outcome; a child that hangs or dies is one, and the next goes on behind it.

    A mutant that takes too long is tried once more, for a machine that others use may stall.
    """
    index, again = 0, -1
    while index < count:
        rest = [kind, str(folder), str(seed), str(index), str(count)]
        arguments = [sys.executable, "-m", "tests.fuzz.mutants.watch", *rest]
        child = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for found in _answers(child):
            index = found["index"] + 1
            yield found
        if index >= count:
            break
        hung = child.returncode == -signal.SIGKILL
        if hung and again != index:
            again = index
            continue
        what = f"HANG over {SECONDS} s" if hung else f"CRASH with {child.returncode}"
        yield {"index": index, "outcome": what, "kind": "?", "memory": (0, 0)}
        index += 1


def _answers(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The outcomes that a child tells, until it ends; one that takes too long for a mutant is killed."""
    assert child.stdout is not None
    limit, line = START_SECONDS, ""
    try:
        while select.select([child.stdout], [], [], limit)[0] and (line := child.stdout.readline()):
            if line.startswith("{"):  # torch prints
                limit = SECONDS
                found = json.loads(line)
                if "outcome" in found:
                    yield found
        if limit == START_SECONDS:
            raise RuntimeError("the child does not come up: see --only")
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0 if line else 1)
        _end(child)


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and what it started."""
    for process in (*_started_by(child.pid), child.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 9)
    child.wait()


def _started_by(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
        except (OSError, ValueError):
            continue
    return found


# -- the child ---------------------------------------------------------------------------------------------------------


def made(kind: str, folder: Path) -> Kind:
    """The mutants of a kind, in a folder of their own."""
    found: Kind = importlib.import_module(f"tests.fuzz.mutants.{kind}").Mutants(folder)
    return found


def _child(kind: str, folder: Path, seed: str, start: int, stop: int) -> None:
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    mutants = made(kind, folder)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 30), hard))  # to spare the machine; what counts is `_peaks`
    peaks = Peaks(mutants)
    for index in range(start, stop):
        rng = random.Random(f"{seed} {index}")
        model = rng.choice(mutants.models)
        print(json.dumps({"start": index}), flush=True)
        peaks.forget()
        what = mutants.mutant(rng, model)
        outcome = mutants.tried(model, what)
        memory = peaks.now()
        if max(memory) > MEGABYTES:
            outcome = f"MEMORY over {MEGABYTES} MB: {memory}"
        found = {"index": index, "model": model, "kind": what, "outcome": outcome, "memory": memory}
        print(json.dumps(found), flush=True)


class Peaks:
    """The largest resident sets in MB while one mutant is tried: of this process, and of those that it started."""

    def __init__(self, mutants: Kind) -> None:
        self.mutants = mutants
        self.dead = _dead()

    def forget(self) -> None:
        """Count from now on."""
        for process in ("self", *self.mutants.processes()):
            try:
                Path(f"/proc/{process}/clear_refs").write_text("5")
            except OSError:
                continue

    def now(self) -> tuple[int, int]:
        """The largest since then; of processes that ended it is known only if it is the largest of all."""
        others = [_peak(process) for process in self.mutants.processes()]
        before, self.dead = self.dead, _dead()
        return _peak("self"), max(0, *others, self.dead if self.dead > before else 0)


def _dead() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def _peak(process: int | str) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6]))
