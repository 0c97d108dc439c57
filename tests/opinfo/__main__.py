"""torch's operator database on a target: `python -m tests.opinfo --target onnx --dtype float16 --write`."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests import kept
from tests.opinfo import page
from tests.opinfo.samples import database, name_of
from tests.opinfo.sweep import Sweep, outcome, run

KEPT = Path(__file__).parents[2] / "build" / "opinfo"
ALL = (  # what --all runs
    Sweep(),
    Sweep(samples="largest"),
    *(Sweep(dtype=d) for d in ("float64", "float16", "bfloat16", "int64", "complex64")),
    Sweep(dynamic=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="onnx")
    parser.add_argument("--dtype", choices=["float32", "float64", "float16", "bfloat16", "int64", "complex64"])
    parser.add_argument("--samples", choices=["first", "largest", "all"], default="first")
    parser.add_argument("--dynamic", action="store_true", help="first dimensions dynamic, run at two sizes")
    parser.add_argument("--all", action="store_true", help="every sweep of the page")
    parser.add_argument("--match", default="", help="entries whose names contain this")
    parser.add_argument("--only", default="", help="these entries, by comma")
    parser.add_argument("--here", action="store_true", help="in this process, for a debugger")
    parser.add_argument("--write", action="store_true", help="into docs/")
    parser.add_argument("--resume", action="store_true", help="keep what build/opinfo/ has")
    parser.add_argument("--ray", metavar="ADDRESS", help="over the CPUs of a Ray cluster; local: of this machine")
    options = parser.parse_args()
    one = Sweep(options.target, options.dtype, options.samples, options.dynamic)
    wrong = [sweep_over(replace(s, target=options.target), options) for s in (ALL if options.all else (one,))]
    return int(any(wrong))


def sweep_over(sweep: Sweep, options: argparse.Namespace) -> int:
    """Run, print what does not pass, write; the number of wrong and failed entries."""
    found = {name_of(op): op for op in database()}
    only = [n for n in options.only.split(",") if n]
    names = only or [n for n in found if options.match in n]
    start = time.time()
    kept = Kept(sweep, options.resume)
    missing = [n for n in names if n not in kept.results]
    here = ((n, *outcome(n, found[n], sweep)) for n in missing)
    for name, status, detail in here if options.here else run(sweep, missing, options.ray):
        kept.add(name, status, detail)
        if status not in ("pass", "excluded", "fixed", "one size"):
            print(name, status, detail, flush=True)
    results = {n: kept.results[n] for n in names}
    counts = collections.Counter(status for status, _ in results.values())
    print(sweep.title, dict(counts), f"{time.time() - start:.0f} s", flush=True)
    if options.write:
        page.write(sweep, results, time.time() - start)
    return counts["wrong"] + counts["failed"]


class Kept:
    """What a sweep has found, in a file of a line for each entry."""

    def __init__(self, sweep: Sweep, resume: bool) -> None:
        parts = (sweep.target, sweep.dtype or "first", sweep.samples, *["dynamic"] * sweep.dynamic)
        self.file = KEPT / f"{'-'.join(parts)}.jsonl"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            self.file.unlink(missing_ok=True)
        self.results = {name: (status, detail) for name, status, detail in kept.rows(self.file)}

    def add(self, name: str, status: str, detail: str) -> None:
        """Note the outcome of an entry."""
        self.results[name] = status, detail
        with self.file.open("a") as lines:
            lines.write(json.dumps((name, status, detail)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
