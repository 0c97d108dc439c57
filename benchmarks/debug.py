"""The table of nodes of whole models, in seconds and memory: `python -m benchmarks.debug [--write]`.

Each table is made in a process of its own, of a model at its full size that is captured already. Memory is the most
that the process and its children hold at once above what they held before, sampled every 20 ms. Processor time is that
of all of them: on a busy machine it says more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import ir
from tests.zoo import models

PAGE = Path(__file__).parent / "debug.md"
MODELS = ("bert", "resnet50")
MOST = {"onnx": 30, "nnef": 90, "eager": 30}  # seconds that a table may take
MEMORY = (1024, 64)  # MB of values that one program holds
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def held(pid: int) -> int:
    """The bytes of a process and of those that it started."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_SIZE
        return resident + sum(map(held, children(pid)))
    except OSError:  # it has ended
        return 0


def children(pid: int) -> Iterator[int]:
    """The processes that a process started."""
    for tasks in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (tasks / "children").read_text().split())


def worked(pid: int) -> float:
    """The processor time of a process and of those that it started, the ended ones too."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(worked, children(pid)))


def one(name: str, target: str, memory: int) -> dict[str, float]:
    """The table of one model: seconds, the bytes that it took at most, and the nodes that differ by themselves."""
    made = models.get(name)
    args, kwargs = made.inputs(made.sizes)
    graph = ir.capture(made.build(), args, kwargs, dynamic_shapes=made.dynamic_shapes)
    ir.debug(ir.capture(torch.relu, (torch.randn(2),)), target=target)  # the runtime is loaded
    before = most = held(os.getpid())
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, held(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, work = time.perf_counter(), worked(os.getpid())
    table = ir.debug(graph, target=target, memory=memory << 20)
    seconds = time.perf_counter() - start
    ended.set()
    watcher.join()
    alone, wrong = sum(r.own is not None for r in table.rows), len(table.wrong)
    used, held_more = worked(os.getpid()) - work, most - before
    return {
        "nodes": len(table.rows), "alone": alone, "wrong": wrong, "seconds": seconds, "work": used, "bytes": held_more,
    }  # fmt: skip


def in_a_process(name: str, target: str, memory: int) -> dict[str, float]:
    """`one` in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.debug", "--one", name, target, str(memory)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(rows: list[str], load: str) -> str:
    """The Markdown."""
    limits = ", ".join(f"{t} {s} s" for t, s in MOST.items())
    return "\n".join([
        "# The table of nodes of whole models",
        "",
        f"By `python -m benchmarks.debug --write`, on {os.cpu_count()} cores ({platform.machine()}, load {load}), "
        f"torch {torch.__version__.partition('+')[0]}; each table may take: {limits}.",
        "`memory` is the option of `ir.debug`: the values that one program of the target takes and gives. torch's own "
        "values of all nodes, in float32 and float64, are held beside them.",
        "",
        "| model | target | nodes | run alone | differ | memory, MB | seconds | processor time, s | held at most, MB |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the page beside this file")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "TARGET", "MB"), help="one table, as JSON")
    options = parser.parse_args()
    if options.one:
        name, target, memory = options.one
        print(json.dumps(one(name, target, int(memory))))
        return 0
    rows, slow, load = [], False, f"{os.getloadavg()[0]:.0f}"
    for name in MODELS:
        for target, limit in MOST.items():
            for memory in MEMORY:
                found = in_a_process(name, target, memory)
                cells = [name, target, found["nodes"], found["alone"], found["wrong"], memory]
                cells += [f"{found['seconds']:.1f}", f"{found['work']:.1f}", f"{found['bytes'] / 2**20:.0f}"]
                rows.append(f"| {' | '.join(map(str, cells))} |")
                print(rows[-1], flush=True)
                slow |= found["seconds"] > limit
    if options.write:
        PAGE.write_text(page(rows, load))
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
