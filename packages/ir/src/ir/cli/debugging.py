"""What `ir debug` does once it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import ir
from ir.cli import arrays, sources
from ir.cli.options import Asked, chosen_target, named_options
from ir.cli.wrong import WrongCall
from ir.debug import explorer
from ir.debug.nodes import nodes
from ir.debug.profile import Profile, of_file, profile
from ir.debug.table import Table
from ir.opening import open_artifact
from ir.view import page
from ir.view.facts import facts


@dataclass(frozen=True)
class Request:
    """What the command line says."""

    asked: Asked
    targets: Sequence[str]

    @property
    def chosen(self) -> list[ir.Target]:
        """The targets with their options."""
        return [chosen_target(name, named_options(self.asked.option)) for name in self.targets or ["onnx"]]

    def source(self) -> sources.Source:
        """The model, its plugins loaded."""
        a = self.asked
        sources.load_plugins(a.plugin or (), a.discover_plugins)
        torch.manual_seed(a.seed)
        return sources.load(a.source, sources.request(a.input, a.dtype, a.task, a.pretrained))

    def graph(self) -> ir.Graph:
        """The captured model."""
        given = self.source()
        return ir.capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)


def tables(
    request: Request, graph: ir.Graph, memory: int, max_error: float | None, sizes: Sequence[str]
) -> list[Table]:
    """The table of each target."""
    chosen = arrays.sizes(sizes)
    return [nodes(graph, target=t, memory=memory, max_error=max_error, sizes=chosen) for t in request.chosen]


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


def check_places(html: Path | None, node_data: Path | None) -> None:
    """Before the work begins: that the page and the table may be written where they are to go.

    Raises:
        OutputError: something stands there that is none of ours.
    """
    if html is not None:
        page.check_path(html)
    if node_data is not None:
        explorer.check_folder(node_data)


def write_page(request: Request, graph: ir.Graph, tables: Sequence[Table], path: Path) -> None:
    """The page of `ir show --html`, in the colours of the tables."""
    page.write(graph, facts(graph, request.chosen), path, request.asked.source, tables)


def write_node_data(request: Request, graph: ir.Graph, tables: Sequence[Table], folder: Path) -> list[Path]:
    """The tables for Model Explorer."""
    pairs = zip(tables, request.chosen, strict=True)
    return [path for table, target in pairs for path in explorer.write_node_data(table, graph, target, folder)]


def profiles(
    request: Request, sizes: Sequence[str], threads: int | None, runs: int, other: Path | None
) -> list[Profile]:
    """The profile of a file, and of another; or of a source on each target."""
    source = Path(request.asked.source)
    is_file = source.exists() and not (source.suffix == ".pt2" and request.targets)
    for name in (request.asked.source, *([str(other)] if other is not None else [])):
        sources.check_there(name)
    files = [source] if is_file else []
    files += [other] if other is not None else []
    if threads is not None and not files:
        raise WrongCall("--threads is of files; a model runs as its target's options say (-O session_options=...)")
    found = [] if is_file else _of_source(request, sizes, runs)
    return found + [_of_file(f, request, sizes, threads, runs) for f in files]


def _of_source(request: Request, sizes: Sequence[str], runs: int) -> list[Profile]:
    graph, chosen = request.graph(), arrays.sizes(sizes)
    return [profile(graph, target=target, sizes=chosen, runs=runs) for target in request.chosen]


def _of_file(path: Path, request: Request, sizes: Sequence[str], threads: int | None, runs: int) -> Profile:
    program = open_artifact(path, None, threads)
    tensors, _ = arrays.fitting(
        program, arrays.given(request.asked.input or ()), arrays.sizes(sizes), request.asked.seed
    )
    return of_file(program, path.name, tensors, runs)
