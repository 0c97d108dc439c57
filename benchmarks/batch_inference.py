"""Rows a second of Ray Data, Spark and Dask with one and two workers, beside the plain loop: --rows 200000 --write.

Every worker computes with one thread, the plain loop as well. One worker and two are measured in turns. All rows go
through Ray and Spark once more with two workers, of which two processes are killed, and are compared with the plain
loop's. What was measured goes to build/batch_inference/ as it comes, the plain loop's results too, and to the page;
--resume goes on from there. Before each run the script waits until an engine's last workers are gone, and notes how
busy others keep the CPUs: on busy ones `times` says nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ir
from benchmarks import batch_engines, pages
from ir.runtime import cpus
from tests.batch_inference.workers import Noted
from tests.kept import rows
from tests.zoo import torchvision_shim  # noqa: F401  (torchvision imports only after it)

PAGE = Path(__file__).with_name("batch_inference.md")
FOLDER = Path(__file__).parents[1] / "build" / "batch_inference"
SUFFIXES = {"onnx": ".onnx", "nnef": ".nnef.tgz", "eager": ".pt2"}
BATCH = 64  # rows for one run of a session
PART = 2048  # rows of a file
KILLS = 2
LONG = ("ray", "spark")  # that all rows go through, with workers that are killed
Found = dict[str, Any]


class Images(torch.nn.Module):
    """A model of images, from bytes as files have them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.float() / 255)


class Text(torch.nn.Module):
    """Two layers of an encoder over 64 tokens, and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1000, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(128, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def models() -> dict[str, tuple[torch.nn.Module, Callable[[int], np.ndarray], str]]:
    """By name: the model, rows, and the input's name."""
    import torchvision

    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    return {
        "resnet18, 3x32x32": (
            Images(torchvision.models.resnet18(num_classes=10)).eval(),
            lambda n: draw.integers(0, 256, (n, 3 * 32 * 32), np.uint8),
            "x",
        ),
        "text, 2 layers, 64 tokens": (Text().eval(), lambda n: draw.integers(0, 1000, (n, 64)), "tokens"),
    }


def export(model: torch.nn.Module, rows: np.ndarray, name: str, folder: Path) -> dict[str, Path]:
    """The model for every target, with a dynamic number of rows."""
    example = torch.from_numpy(rows[:4].reshape(4, 3, 32, 32) if rows.shape[1] == 3072 else rows[:4])
    paths = {}
    for target, suffix in SUFFIXES.items():
        paths[target] = folder / f"model{suffix}"
        ir.export(model, (example,), target=target, path=paths[target], dynamic_shapes=({0: "batch"},),
                  input_names=[name], output_names=["output"], verify=True)  # fmt: skip
    return paths


def write(rows: np.ndarray, name: str, folder: Path) -> list[str]:
    """Parquet files of PART rows, with a number for each row, and the row as an array and as the array's bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    found = []
    for start in range(0, len(rows), PART):
        part = rows[start : start + PART]
        offsets = np.arange(0, part.size + 1, part.shape[1], dtype=np.int32)
        lists = pa.ListArray.from_arrays(offsets, pa.array(part.ravel()))
        ids = np.arange(start, start + len(part))
        found.append(str(folder / f"{start:09}.parquet"))
        raw = pa.array([row.tobytes() for row in part])
        table = pa.table({"id": ids, name: lists, f"{name}_bytes": raw})
        parquet.write_table(table, found[-1], compression="none", use_dictionary=False)
    return found


# -- what workers note -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed(Noted):
    """Notes when each batch was done, too."""

    def tensors(self, table: Any) -> dict[str, Any]:
        """As every runner's."""
        found = super().tensors(table)
        with Path(self.folder, f"batches-{os.getpid()}").open("a") as notes:
            notes.write(f"{time.time()} {next(iter(found.values())).shape[0]}\n")
        return found


def timed(path: Path, folder: Path, deaths: int = 0) -> Timed:
    """A runner with one thread that notes into a new folder."""
    folder.mkdir()
    (folder / "parent").write_text(str(os.getpid()))
    return Timed(**vars(ir.runner(path, threads=1, batch_size=BATCH)), folder=str(folder), deaths=deaths)


def steady(folder: Path) -> float:
    """Rows a second while all workers were at work: from when the last of them had done its first batch until the
    first had done its last. NaN where there was no such time."""
    each = [
        [(float(end), int(rows)) for end, rows in map(str.split, p.read_text().splitlines())]
        for p in folder.glob("batches-*")
    ]
    start, stop = max(b[0][0] for b in each), min(b[-1][0] for b in each)
    rows = 0.0
    for (before, _), (end, count) in itertools.chain.from_iterable(map(itertools.pairwise, each)):
        rows += count * max(0.0, min(end, stop) - max(before, start)) / (end - before)
    return rows / (stop - start) if stop > start else math.nan


def noted(folder: Path) -> Found:
    """How many processes there were, how many sessions they opened, and how many were killed."""
    opened = [p.name.split("-")[1] for p in folder.glob("opened-*")]
    killed = len(list(folder.glob("died-*")))
    return {"processes": len(set(opened)), "sessions": len(opened), "killed": killed}


def compared(ids: np.ndarray, results: np.ndarray, wanted: np.ndarray) -> Found:
    """How many rows of the plain loop's are missing, there twice, or different."""
    counts = np.bincount(ids, minlength=len(wanted))
    equal = np.isclose(results, wanted[ids], rtol=1e-4, atol=1e-5).all(1)
    return {"lost": int((counts == 0).sum()), "doubled": int((counts > 1).sum()), "different": int((~equal).sum())}


# -- the runs ----------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """A model's files and rows, and what the plain loop made of them."""

    title: str
    column: str
    rows: np.ndarray
    files: list[str]
    paths: Mapping[str, Path]
    folder: Path
    seconds: float  # that a measurement takes one worker
    wanted: dict[str, np.ndarray]
    speeds: dict[str, float]

    def plain(self, target: str, known: Found | None) -> Found:
        """All rows in this process, or what another call of the script made of them."""
        file = FOLDER / f"{re.sub('[^a-z0-9]+', '-', self.title)}-{target}-{len(self.rows)}.npy"
        if known is not None and file.exists():
            self.wanted[target], self.speeds[target] = np.load(file), known["rate"]
            return known
        busy = others()
        with ir.runner(self.paths[target], threads=1, batch_size=BATCH) as runner:
            runner({self.column: self.rows[: 4 * BATCH]})
            start = time.perf_counter()
            self.wanted[target] = runner({self.column: self.rows})["output"]
            self.speeds[target] = len(self.rows) / (time.perf_counter() - start)
        np.save(file, self.wanted[target])
        return {"rate": self.speeds[target], "rows": len(self.rows), "others": busy}

    def run(self, run: batch_engines.Run, target: str, files: Sequence[str], deaths: int = 0) -> Found:
        """Some files through an engine: how fast, by how many processes, and what is wrong with the results."""
        notes, busy = Path(tempfile.mkdtemp(dir=self.folder)) / "notes", others()
        start = time.perf_counter()
        ids, results = run(files, self.column, timed(self.paths[target], notes, deaths))
        seconds = time.perf_counter() - start
        wanted = self.wanted[target][: len(files) * PART]
        head = {"rate": steady(notes), "seconds": seconds, "rows": len(wanted), "others": busy}
        return head | noted(notes) | compared(ids, results, wanted)

    def some(self, target: str, workers: int) -> list[str]:
        """As many files as keep the workers busy for long enough."""
        rows = workers * self.seconds * self.speeds[target]
        return self.files[: max(4 * workers, round(rows / PART))]


def others(patience: float = 10.0, idle: float = 0.1) -> float:
    """The part of the CPUs' time that is taken while nothing of this script runs, once what it ran has ended."""
    until = time.monotonic() + patience
    while (found := _taken()) > idle and time.monotonic() < until:
        pass
    return found


def _taken(seconds: float = 1.0) -> float:
    """The part of the CPUs' time that is taken in these seconds."""
    counts = []
    for wait in (0.0, seconds):
        time.sleep(wait)
        user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
        counts.append((idle + waiting, user + nice + system + idle + waiting + sum(rest)))
    (free, all_of), (free_now, all_now) = counts
    return 1 - (free_now - free) / max(1, all_now - all_of)


def measurements(work: Work, engines: Sequence[str], turns: int, known: Callable[..., Found | None]) -> Iterator[Found]:
    """Everything about a model, one by one, that is not known already."""
    for target in work.paths:
        before = known("plain", target, 1, False, 0)
        if (made := work.plain(target, before)) is not before:
            yield {"engine": "plain", "target": target, "workers": 1} | made
    for engine, turn, workers in itertools.product(engines, range(turns), (1, 2)):
        kinds = [False, True] if workers == 2 and engine in LONG and turn == 0 else [False]
        wanted = [(t, k) for t in work.paths for k in kinds if known(engine, t, workers, k, turn) is None]
        if not wanted:
            continue
        with batch_engines.OPEN[engine](workers) as run:
            work.run(run, wanted[0][0], work.files[: 2 * workers])  # so that the engine is warm
            for target, long in wanted:
                files = work.files if long else work.some(target, workers)
                head = {"engine": engine, "target": target, "workers": workers, "long": long, "turn": turn}
                try:
                    yield head | work.run(run, target, files, KILLS if long else 0)
                except Exception as error:  # the others are measured all the same
                    yield head | {"error": f"{type(error).__name__}: {error}"[:300]}


def measure(title: str, kept: list[Found], options: argparse.Namespace) -> Iterator[None]:
    """What is not known of a model, into the list."""
    model, make, column = models()[title]
    held = {_key(f): f for f in kept}
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), make(options.rows)
        paths, files = export(model, rows, column, folder), write(rows, column, folder)
        paths = {t: p for t, p in paths.items() if t in options.targets}
        work = Work(title, column, rows, files, paths, folder, options.seconds, {}, {})
        for found in measurements(work, options.engines, options.turns, lambda *key: held.get((title, *key))):
            kept.append({"model": title, "of": options.rows} | found)
            yield


def main() -> int:
    """Measure and print a table, or write it; 1 if a row was lost, doubled or different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=16, help="of work for each worker where a rate is measured")
    parser.add_argument("--turns", type=int, default=3, help="of one worker and two; the table has medians")
    parser.add_argument("--engines", nargs="*", default=[*batch_engines.OPEN], choices=[*batch_engines.OPEN])
    parser.add_argument("--targets", nargs="*", default=[*SUFFIXES], choices=[*SUFFIXES])
    parser.add_argument("--models", default="", help="those whose names contain this")
    parser.add_argument("--resume", action="store_true", help="keep what calls with the same --rows measured")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}, after each measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "measured.jsonl"
    if not options.resume:
        file.unlink(missing_ok=True)
    kept = [f for f in rows(file) if f["of"] == options.rows and "error" not in f]
    for title in models():
        for _ in measure(title, kept, options) if options.models in title else ():
            with file.open("a") as lines:
                lines.write(json.dumps(kept[-1]) + "\n")
            print(json.dumps(kept[-1]), flush=True)
            if options.write:
                pages.put(PAGE, f"{note(kept)}\n\n{table(kept)}")
    print(f"{note(kept)}\n\n{table(kept)}")
    return int(any(f.get(k) for f in kept for k in ("lost", "doubled", "different", "error")))


# -- the table ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    "model", "target", "engine", "plain loop", "1 worker", "2 workers", "times (least to most)", "sessions of 1, 2",
    "all rows, 2 killed: seconds", "sessions", "lost, doubled, different",
)  # fmt: skip


def note(kept: Sequence[Found]) -> str:
    """How many rows, and on what machine."""
    busy = sorted(f["others"] for f in kept if "others" in f)
    taken = f"{busy[len(busy) // 2]:.0%} at the median, {busy[-1]:.0%} at most" if busy else "unknown"
    return (
        f"{kept[0]['of']:,} rows, {cpus.available()} CPUs. Taken by others in the second before a run: {taken}."
        if kept
        else ""
    )


def _key(found: Found) -> tuple[Any, ...]:
    run = found["model"], found["engine"], found["target"], found["workers"]
    return *run, found.get("long", False), found.get("turn", 0)


def table(kept: Sequence[Found]) -> str:
    """A line for each model, target and engine; what is not measured, or failed, is a dash."""
    held = {_key(f): f for f in kept if "error" not in f}
    turns = range(1 + max((f.get("turn", 0) for f in kept), default=0))
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|" + "---:|" * (len(COLUMNS) - 3)]
    for model, target, engine in dict.fromkeys((f["model"], f["target"], f["engine"]) for f in kept):
        if engine == "plain":
            continue
        one, two = ([_whole(held.get((model, engine, target, n, False, t), {})) for t in turns] for n in (1, 2))
        long = held.get((model, engine, target, 2, True, 0), {})
        times = [b["rate"] / a["rate"] for a, b in zip(one, two, strict=True)]
        rates = [held[model, "plain", target, 1, False, 0]["rate"], _median(one), _median(two)]
        wrong = ", ".join(str(long[k]) for k in ("lost", "doubled", "different")) if long else "-"
        cells = [
            *(_number(r, ",.0f") for r in rates), _spread(times), f"{_sessions(one)}, {_sessions(two)}",
            _number(long.get("seconds", math.nan), ".0f"), str(long.get("sessions", "-")), wrong,
        ]  # fmt: skip
        lines.append(f"| {model} | {target} | {engine} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _median(turns: Sequence[Found]) -> float:
    return statistics.median([f["rate"] for f in turns if not math.isnan(f["rate"])] or [math.nan])


def _spread(times: Sequence[float]) -> str:
    held = sorted(t for t in times if not math.isnan(t))
    return f"{statistics.median(held):.2f} ({held[0]:.2f} to {held[-1]:.2f})" if held else "-"


def _sessions(turns: Sequence[Found]) -> str:
    """That each turn opened, which should be one number."""
    return "/".join(map(str, sorted({f["sessions"] for f in turns if "sessions" in f}))) or "-"


def _whole(found: Found) -> Found:
    """Without a rate where nothing was measured, or fewer workers came to work than were asked for."""
    whole = "rate" in found and found["processes"] == found["workers"]
    return found if whole else found | {"rate": math.nan}


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
