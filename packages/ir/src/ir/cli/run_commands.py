"""`ir run` and `ir bench` as typer reads them; what they need is imported once they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from ir.cli.options import AsJson, Options, Traceback, named_options
from ir.cli.printing import Console

# ruff: noqa: UP045 - typer reads Optional
Arrays = Annotated[
    Optional[list[str]],
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE.npy",
        help="an input, or all of them as FILE.npz, or random as x=float32[2,4]; random by the file's own signature "
        "where none is given; repeatable",
    ),
]
Sizes = Annotated[
    Optional[list[str]],
    typer.Option("--size", metavar="NAME=N", help="of a dynamic dimension, for random inputs; repeatable"),
]
OneTarget = Annotated[
    Optional[str], typer.Option("--target", "-t", help="whose file it is; by its name if nothing is said")
]
Threads = Annotated[Optional[int], typer.Option("--threads", min=1, help="where the runtime lets one choose")]
Seed = Annotated[int, typer.Option("--seed", help="of random inputs")]


def run(
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="a file or directory that `ir export` wrote")],
    input: Arrays = None,
    size: Sizes = None,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", metavar="FILE.npz", help="where the results go")
    ] = None,
    target: OneTarget = None,
    threads: Threads = None,
    seed: Seed = 0,
    option: Options = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Run an artifact in its own runtime, on arrays or on random inputs, and say what came out."""
    from ir.cli import running

    results, sizes = running.run_file(
        artifact, input or (), size or (), target, threads, seed, output, named_options(option)
    )
    if as_json:
        print(json.dumps({"outputs": [vars(r) for r in results], "sizes": sizes}, indent=2))
        return
    table = Table("output", "type", "least", "mean", "largest", show_edge=False, pad_edge=False)
    for r in results:
        numbers = ["" if n is None else f"{n:.4g}" for n in (r.min, r.mean, r.max)]
        table.add_row(r.name, f"{r.type}{list(r.shape)}", *numbers)
    console = Console(emoji=False)
    _sizes(console, sizes)
    console.print(table, markup=False)
    if output is not None:
        console.print(f"\nwritten to {output}", highlight=False, markup=False, soft_wrap=True)


def bench(
    artifacts: Annotated[
        list[Path], typer.Argument(metavar="ARTIFACTS...", help="files or directories that `ir export` wrote")
    ],
    input: Arrays = None,
    size: Sizes = None,
    target: OneTarget = None,
    threads: Threads = None,
    warm_up: Annotated[int, typer.Option("--warm-up", min=0, help="calls before those that count")] = 3,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="calls that count, of each artifact")] = 100,
    seed: Seed = 0,
    option: Options = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Time artifacts in turns, each in its own runtime: percentiles of a call, in milliseconds."""
    from ir.cli import running

    found = running.bench(
        artifacts, input or (), size or (), target, threads, seed, warm_up, runs, named_options(option)
    )
    if as_json:
        print(json.dumps([t.data() for t in found], indent=2))
        return
    console = Console(emoji=False)
    _sizes(console, {n: s for t in found for n, s in t.sizes.items()})
    table = Table("file", show_edge=False, pad_edge=False)
    for name in ("p50, ms", "p90", "p99", "mean", "calls", "load", "threads"):
        table.add_column(name, justify="right")
    for t in found:
        times = [f"{n:.3g}" for n in (t.p50, t.p90, t.p99, t.mean)]
        table.add_row(t.file, *times, str(t.calls), f"{t.load:.0f}", str(t.threads or "its own"))
    console.print(table, markup=False)


def _sizes(console: Console, sizes: dict[str, int]) -> None:
    if sizes:
        what = ", ".join(f"{n}={s}" for n, s in sizes.items())
        console.print(f"dynamic dimensions: {what} (--size NAME=N sets another)", highlight=False, soft_wrap=True)
