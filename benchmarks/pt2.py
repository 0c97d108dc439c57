"""Reading a .pt2 file beside torch.export.load: `python -m benchmarks.pt2 [names...] [--full] [--write]`.

Both read the same file in one process for each model, in turns, the file in the system's cache; the seconds are
processor time, the median of five turns. Ours ends with the imported graph, torch's with the ExportedProgram that a
graph would still have to be imported from. A ratio below 1 says that ours is the faster.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import multiprocessing
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import ir
from tests.zoo import models

PAGE = Path(__file__).parent / "pt2.md"
TURNS = 5


@dataclass(frozen=True)
class Row:
    """One file, and the seconds of both."""

    name: str
    ours: float
    theirs: float


def rows(names: Sequence[str], small: bool) -> Iterator[Row]:
    """Each model exported, saved and read, in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name in names:
            yield pool.apply(row, (name, small))


def row(name: str, small: bool) -> Row:
    """One model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        program = models.get(name, small=small).export()
        torch.export.save(program, path)
        del program
        ours, theirs = [], []
        for _ in range(TURNS):
            theirs.append(_seconds(lambda: torch.export.load(path)))
            ours.append(_seconds(lambda: ir.capture(path)))
        return Row(name, statistics.median(ours), statistics.median(theirs))


def _seconds(read: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    read()
    return time.process_time() - start


def table(measured: Sequence[Row], small: bool) -> str:
    """The page."""
    head = (__doc__ or "").partition("\n\n")[2].strip()
    kind = "the zoo's models in their small variants" if small else "the zoo's models at full size"
    lines = [
        "# Reading a .pt2 file", "", head, "",
        f"torch {torch.__version__} on {platform.machine()}, {torch.get_num_threads()} thread, {kind}.", "",
        "| model | ir.capture s | torch.export.load s | ratio |", "|---|---|---|---|",
    ]  # fmt: skip
    for r in measured:
        lines.append(f"| {r.name} | {r.ours:.3f} | {r.theirs:.3f} | **{r.ours / r.theirs:.2f}** |")
    mean = math.exp(sum(math.log(r.ours / r.theirs) for r in measured) / len(measured))
    return "\n".join([*lines, f"| geometric mean | | | **{mean:.2f}** |", ""])


def main() -> None:
    """Measure, print, and with --write keep the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=models.NAMES)
    parser.add_argument("--full", action="store_true", help="full sizes, not the small variants")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    measured = []
    for row in rows(given.names, not given.full):
        print(f"{row.name:30s} {row.ours:.3f} {row.theirs:.3f} {row.ours / row.theirs:.2f}", flush=True)
        measured.append(row)
    text = table(measured, not given.full)
    print(text.splitlines()[-1])
    if given.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
