"""`ir export`: load, capture, and for each target lower, write and compare, with what there is to say of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import ir
from ir import plugins
from ir.cli import sources, summary
from ir.files import written
from ir.view.facts import short


@dataclass(frozen=True)
class Call:
    """What the command line says beside the source."""

    targets: Sequence[str]
    options: dict[str, Any]
    opset: int | None
    output: Path | None
    verify: bool
    plugins: Sequence[str]
    discover: bool


def export(source: str, request: sources.Request, call: Call, seed: int, progress: Console) -> list[summary.Outcome]:
    """One outcome for each target; with several targets one that refuses leaves the others.

    Raises:
        ExportError: the source, or the only target, refuses.
    """
    targets = [_target(name, call) for name in call.targets]
    seconds: dict[str, float] = {}
    torch.manual_seed(seed)
    with _stage(progress, "load", seconds):
        given = sources.load(source, request)
    with _stage(progress, "capture", seconds):
        graph = ir.capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)
    return [_one(graph, target, given, call, dict(seconds), progress) for target in targets]


def _target(name: str, call: Call) -> ir.Target:
    extra = {"opset": call.opset} if call.opset is not None and name == "onnx" else {}
    return plugins.find_target(name, call.options | extra)


def _one(
    graph: ir.Graph, target: ir.Target, given: sources.Source, call: Call, seconds: dict[str, float], progress: Console
) -> summary.Outcome:
    path = _place(given.name, call.output, target, len(call.targets))
    try:
        with _stage(progress, "export and verify" if call.verify else "export", seconds, target.name, path):
            program = ir.export(
                graph,
                target=target,
                path=path,
                verify=call.verify,
                plugins=call.plugins,
                discover_plugins=call.discover,
            )
        return summary.outcome(program, seconds, call.verify, given.notes)
    except ir.ExportError as error:
        if len(call.targets) == 1:
            raise
        return summary.Outcome(target.name, error=f"{type(error).__name__}: {error}")


def _place(name: str, output: Path | None, target: ir.Target, count: int) -> Path:
    if output is None:
        return Path(f"{name}{target.suffix}")
    return output if count == 1 else Path(f"{output}{target.suffix}")


@contextmanager
def _stage(
    console: Console, name: str, seconds: dict[str, float], target: str = "", path: Path | None = None
) -> Iterator[None]:
    """Time a part of the work; a terminal shows what is being done, and how much of a file is there."""
    start = time.perf_counter()
    if console.is_terminal and not console.quiet:
        what = f"{target} {name}".strip()
        with console.status(what) as status, _watched(path, lambda size: status.update(f"{what}: {short(size, 'B')}")):
            yield
    else:
        yield
    seconds[name] = time.perf_counter() - start


@contextmanager
def _watched(path: Path | None, tell: Callable[[int], None]) -> Iterator[None]:
    """Tell how large the file is that is being written, a few times a second."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            if path is not None and (size := written(path)):
                tell(size)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
