"""`ir export`: load, capture, and for each target lower, write and compare, with what there is to say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ir
from ir.cli import sources, summary
from ir.cli.options import chosen_target
from ir.cli.printing import Console
from ir.cli.progress import Stages
from ir.errors import OutputError
from ir.files import is_same, stem, writable
from ir.progress import listening


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
    targets = [_target(name, call) for name in dict.fromkeys(call.targets)]
    torch.manual_seed(seed)
    stages = Stages(progress)
    with stages.stage("load"):
        given = sources.load(source, request)
        if call.plugins:
            sources.load_plugins(call.plugins, call.discover)
    places = [_place(given.name, call.output, target, targets) for target in targets]
    for target, place in zip(targets, places, strict=True):  # before the capture, which may take minutes
        target.check_path(writable(place))
        if is_same(place, source):
            raise OutputError(f"{place} is what is exported: give another name, as -o {place.stem}.{target.name}.pt2")
    with listening(stages):
        graph = ir.capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)
        return [
            _one(graph, target, place, given, call, stages, stages.seconds)
            for target, place in zip(targets, places, strict=True)
        ]


def _target(name: str, call: Call) -> ir.Target:
    extra = {"opset": call.opset} if call.opset is not None and name == "onnx" else {}
    return chosen_target(name, call.options | extra)


def _one(
    graph: ir.Graph,
    target: ir.Target,
    path: Path,
    given: sources.Source,
    call: Call,
    stages: Stages,
    before: dict[str, float],
) -> summary.Outcome:
    stages.target, stages.seconds = target.name, dict(before)
    try:
        program = ir.export(
            graph,
            target=target,
            path=path,
            verify=call.verify,
            plugins=call.plugins,
            discover_plugins=call.discover,
        )
        return summary.outcome(program, stages.seconds, call.verify, given.notes)
    except ir.ExportError as error:
        if len({*call.targets}) == 1:
            raise
        return summary.Outcome(target.name, error=f"{type(error).__name__}: {error}")


def _place(name: str, output: Path | None, target: ir.Target, targets: Sequence[ir.Target]) -> Path:
    own = f"{name}{target.suffix}"
    if output is None:
        return Path(own)
    if output.is_dir() and stem(output.name) == output.name:  # net.nnef is the name of an artifact
        return output / own
    if len(targets) == 1:
        return output
    if any(output.name.lower().endswith(t.suffixes) for t in targets if t.suffixes):  # net.onnx is one of them
        output = output.with_name(stem(output.name))
    return Path(f"{output}{target.suffix}")
