"""Where the time goes, by node of the graph, module and source line, on any target."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ir.debug.subject import Subject
from ir.debug.table import columns
from ir.errors import ExportError
from ir.graph import Graph
from ir.importer.capture import arguments
from ir.loading import loaded
from ir.lower import lower
from ir.opened import Opened, Place, Timed, places_in
from ir.opening import open_artifact
from ir.target import Target
from ir.words import counted

_SHOWN = 30


@dataclass(frozen=True)
class ProfileRow:
    """One node of the graph, or what the runtime made that is none's: seconds of one run, and the runtime's ops."""

    name: str
    op: str
    module: str
    source: str
    seconds: float
    share: float
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """The rows, the slowest first; `seconds` is the sum over nodes, `call_seconds` what an ordinary call takes."""

    target: str
    rows: tuple[ProfileRow, ...]
    seconds: float
    call_seconds: float
    notes: tuple[str, ...] = ()

    def by(self, key: Callable[[ProfileRow], str]) -> dict[str, float]:
        """Seconds by anything that a row says, the most first."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows:
            found[key(row)] += row.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def modules(self) -> dict[str, float]:
        """Seconds by module, those of the modules below it included."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows:
            path = ""
            for part in ["", *filter(None, row.module.split("."))]:
                path = f"{path}.{part}" if path else part
                found[path] += row.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def data(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"modules": self.modules}

    def json(self) -> str:
        """`data` as JSON."""
        return json.dumps(self.data(), indent=1)

    def text(self, shown: int | None = _SHOWN) -> str:
        """The slowest rows, and the time by kind of op and by module."""
        total = self.seconds or 1.0
        sums = f"{_ms(self.seconds)} ms in nodes, {_ms(self.call_seconds)} ms a call"
        head = [f"{counted(len(self.rows), 'node')} on {self.target}: {sums}", *self.notes]
        names = [("node", "ms", "share", "op", "module", "source", "runtime's ops")]
        rows = [
            (
                r.name,
                _ms(r.seconds),
                f"{r.share:.1%}",
                r.op.removeprefix("aten::"),
                r.module,
                r.source,
                ", ".join(r.ops),
            )
            for r in self.rows[:shown]
        ]
        parts = [*head, "", *columns([*names, *rows])]
        if shown is not None and len(self.rows) > shown:
            parts.append(f"and {len(self.rows) - shown} more")
        for title, found in (("op", self.by(lambda r: r.op or ", ".join(r.ops))), ("module", self.modules)):
            kinds = [(k or "(top)", _ms(s), f"{s / total:.1%}") for k, s in list(found.items())[:12]]
            parts += ["", *columns([(title, "ms", "share"), *kinds])]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text()


def profile(
    program: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target | None = None,
    handlers: Mapping[str, Callable[..., Any]] | None = None,
    dynamic_shapes: Any = None,
    sizes: Mapping[str, int] | None = None,
    runs: int = 20,
    **options: Any,
) -> Profile:
    """Where a program's time goes on a target, by its runtime's own profiler.

    Args:
        program: as for `ir.debug.nodes`, or the file of an artifact, a .pt2 without a `target` included. One of ONNX
            or NNEF has the names of nodes alone unless it was exported with `metadata=True`.
        args: as for `ir.debug.nodes`.
        kwargs: as for `ir.debug.nodes`.
        target: as for `ir.debug.nodes`.
        handlers: as for `ir.debug.nodes`.
        dynamic_shapes: as for `ir.debug.nodes`.
        sizes: as for `ir.debug.nodes`; a file is run on tensors of the sizes that it is to have.
        runs: how many are measured; tract chooses its own number.
        **options: the target's options, where it is named.

    Raises:
        ExportError: the target's runtime has no profiler, or the arguments are none of this program.

    >>> print(ir.debug.profile(program))  # doctest: +SKIP
    """
    if isinstance(program, (str, Path)) and target is None:
        if sizes or kwargs:
            raise ExportError("a file takes its tensors by position as args, of the sizes that they are to have")
        return _of_file(Path(program), args, runs)
    about = Subject.of(program, args, kwargs, target, handlers, dynamic_shapes, options)
    about = about.at(sizes) if sizes else about
    own = target is None and hasattr(program, "artifact")
    artifact = program.artifact if own else lower(about.graph, about.target, about.registry)
    runner = loaded(about.target, artifact, about.graph, program.file if own else None)
    return of_runner(runner, about.target.name, about.inputs, runs, places(about.graph, about.target, artifact))


def _of_file(path: Path, args: Any, runs: int) -> Profile:
    """The profile of an artifact, by its runtime, on the tensors that it is given."""
    opened = open_artifact(path)
    given = list(arguments(() if args is None else args, None)[0])
    if len(given) != len(opened.inputs):
        takes = ", ".join(map(str, opened.inputs))
        raise ExportError(
            f"{path.name} takes {counted(len(opened.inputs), 'tensor')} ({takes}), and is given {len(given)}"
        )
    return of_file(opened, path.name, given, runs)


def of_file(opened: Opened, name: str, inputs: Sequence[Any], runs: int) -> Profile:
    """The profile of an opened file."""
    known = opened.places
    found = of_runner(opened, name, inputs, runs, known)
    lacks = "" if known else "the file does not tell source lines: export it with metadata=True (-O metadata=true)"
    return replace(found, notes=(lacks,)) if lacks else found


def of_runner(runner: Any, name: str, inputs: Sequence[Any], runs: int, known: Mapping[str, Place]) -> Profile:
    """The profile of anything that runs and times its nodes, whose places are known by these names."""
    if not hasattr(runner, "timed"):
        raise ExportError(f"target {name!r} has no profiler for its nodes")
    timed = runner.timed(inputs, runs)
    calls = []
    for _ in range(max(3, runs // 4)):
        start = time.perf_counter()
        runner(*inputs)
        calls.append(time.perf_counter() - start)
    return Profile(name, _rows(timed, known), sum(t.seconds for t in timed), statistics.median(calls))


def places(graph: Graph, target: Target, artifact: Any) -> dict[str, Place]:
    """Where nodes come from, by the names that the graph's values, and the target's own nodes, have in the artifact."""
    known = places_in(graph)
    for name, value in target.node_names(artifact).items():
        found = _nearest(value, known)
        if found is not None:
            known.setdefault(name, found)
    inner = {replace(p, name=p.name.rpartition("/")[2]): p for p in known.values() if "/" in p.name}
    own = {Place.of(n): Place.of(n) for n in graph.nodes if n.outputs}
    told = target.node_places(artifact).items()
    return known | {name: found for name, p in told if (found := (inner | own).get(p)) is not None}


def _nearest(name: str, known: Mapping[str, Place]) -> Place | None:
    """The place of the longest known name that this one is, or begins with up to a sign between words."""
    if name in known:
        return known[name]
    for cut in reversed([m.start() for m in re.finditer(r"[._/:\-]|(?=_\d)", name)]):
        if cut and name[:cut] in known:
            return known[name[:cut]]
    return None


def _rows(timed: Iterable[Timed], known: Mapping[str, Place]) -> tuple[ProfileRow, ...]:
    found: dict[Any, list[Timed]] = {}
    for t in timed:
        found.setdefault(_nearest(t.name, known) or t.name, []).append(t)
    total = sum(t.seconds for ts in found.values() for t in ts) or 1.0
    rows = [_row(key, ts, sum(t.seconds for t in ts), total) for key, ts in found.items()]
    return tuple(sorted(rows, key=lambda r: -r.seconds))


def _row(key: Any, timed: Sequence[Timed], seconds: float, total: float) -> ProfileRow:
    ops = tuple(dict.fromkeys(t.op for t in timed))
    if not isinstance(key, Place):  # a name such as "/encoder/layers.0/linear" begins with the module
        module = key.strip("/").rpartition("/")[0].replace("/", ".") if key.startswith("/") else ""
        return ProfileRow(key, "", module, "", seconds, seconds / total, ops)
    return ProfileRow(key.name, key.op, key.module, key.line, seconds, seconds / total, ops)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def compared(first: Profile, second: Profile) -> list[str]:
    """Lines that say which modules gained or lost from the first to the second, the largest change first."""
    names = [n for n in {**first.modules, **second.modules} if n]
    pairs = [(n, first.modules.get(n, 0.0), second.modules.get(n, 0.0)) for n in names]
    pairs.sort(key=lambda p: -abs(p[1] - p[2]))
    whole = (first.call_seconds, second.call_seconds)
    rows = [("module", f"{first.target}, ms", f"{second.target}, ms", "factor")]
    for name, a, b in [("a whole call", *whole), *pairs[:_SHOWN]]:
        rows.append((name, _ms(a), _ms(b), f"{b / a:.2f}" if a else "-"))
    return columns(rows)
