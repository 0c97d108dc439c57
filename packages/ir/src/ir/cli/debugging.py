"""What `ir debug` does once it runs."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ir
from ir import plugins
from ir.cli import arrays, sources
from ir.debug.nodes import nodes
from ir.debug.profile import Profile, of_runner, profile
from ir.debug.table import Table
from ir.opening import open_artifact


@dataclass(frozen=True)
class Request:
    """What the command line says."""

    source: str
    targets: Sequence[str]
    inputs: Sequence[str]
    dtype: str | None
    task: str | None
    pretrained: bool
    seed: int
    options: dict[str, Any]
    plugins: Sequence[str]
    discover: bool

    @property
    def chosen(self) -> list[ir.Target]:
        """The targets with their options."""
        return [plugins.find_target(name, self.options) for name in self.targets]

    def graph(self) -> ir.Graph:
        """The captured model, its plugins loaded."""
        plugins.load(self.plugins, discover=self.discover)
        torch.manual_seed(self.seed)
        given = sources.load(self.source, sources.request(self.inputs, self.dtype, self.task, self.pretrained))
        return ir.capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)


def tables(request: Request, memory: int) -> list[Table]:
    """The table of each target."""
    graph = request.graph()
    return [nodes(graph, target=target, memory=memory) for target in request.chosen]


def verdict(tables: Sequence[Table]) -> Iterator[str]:
    """Whose fault the worst rows look like: where one target alone deviates, its own; where all do, one above them."""
    if len(tables) < 2:
        return
    wrong = {t.target: {r.name for r in t.wrong} for t in tables}
    everywhere = set.intersection(*wrong.values())
    for name in sorted(set.union(*wrong.values())):
        on = [t for t, names in wrong.items() if name in names]
        row = next(t.row(name) for t in tables if t.target == on[0])
        if name in everywhere:
            yield f"%{name} = {row.op} differs on every target: its decomposition, or what torch computes there"
        else:
            yield f"%{name} = {row.op} differs on {', '.join(on)} alone: a handler there, or the runtime"


def page(title: str, tables: Sequence[Table]) -> str:
    """The tables as a page for a browser, without a network."""
    style = "body{font:14px sans-serif}td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ddd}"
    body = "".join(f"<h2>{t.target}</h2>{t.html()}" for t in tables)
    return f'<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>{body}'


def profiles(
    request: Request, sizes: Sequence[str], threads: int | None, runs: int, other: Path | None
) -> list[Profile]:
    """The profile of a file, and of another; or of a source on each target."""
    is_file = Path(request.source).exists() and not request.source.endswith(".pt2")
    files = [Path(request.source)] if is_file else []
    files += [other] if other is not None else []
    found = [] if is_file else _of_source(request, runs)
    return found + [_of_file(f, request, sizes, threads, runs) for f in files]


def _of_source(request: Request, runs: int) -> list[Profile]:
    graph = request.graph()
    return [profile(graph, target=target, runs=runs) for target in request.chosen]


def _of_file(path: Path, request: Request, sizes: Sequence[str], threads: int | None, runs: int) -> Profile:
    program = open_artifact(path, None, threads)
    tensors, _ = arrays.fitting(program, arrays.given(request.inputs), arrays.sizes(sizes), request.seed)
    return of_runner(program, path.name, tensors, runs)
