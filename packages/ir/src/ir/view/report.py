"""The report of an export, in Markdown: what one attaches to an issue."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ir.debug.literals import literals
from ir.errors import OutputError
from ir.files import head, staged, writable
from ir.graph import Graph
from ir.importer.torch_api import guards_code
from ir.target import Target
from ir.trial import notes_of
from ir.view.facts import Facts, facts, short
from ir.words import counted, plain

_TITLE = "# An export by ir"


class Notes:
    """What is known of an export while it runs; with a path it becomes a file, whatever the end.

    Raises:
        OutputError: the path is no .md, or something else lies there.
    """

    def __init__(self, target: Target, options: Mapping[str, Any], path: Any, report: Any) -> None:
        self.target, self.options, self.path = target, options, path
        self.place = None if report is None else Path(os.fspath(_path(report)))
        if self.place is not None:
            _ours(writable(self.place))
        self.graph: Graph | None = None
        self.program: Any = None

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Around the export."""
        refused: BaseException | None = None
        try:
            yield
        except Exception as error:
            refused = error
            raise
        finally:
            if self.place is not None:
                with staged(self.place, _ours) as temporary:
                    temporary.write_text(plain(self.text(refused)), encoding="utf-8")

    def text(self, refused: BaseException | None = None) -> str:
        """The report."""
        parts = [_TITLE, self._outcome(refused)]
        if refused is not None:
            parts += ["## Refused", f"```\n{type(refused).__name__}: {refused}\n```"]
        if self.graph is not None:
            found = facts(self.graph, [self.target])
            parts += [*self._captured(self.graph, found), *_fixed(self.graph, found), *self._ops(found)]
            parts += self._weights(found)
        if self.program is not None and self.program.report.rows:
            rows = [[r.name, f"{r.dtype}{list(r.shape)}", r.sizes, _error(r)] for r in self.program.report.rows]
            parts += ["## Compared with torch", _table(["result", "type", "sizes", "largest error"], rows)]
        parts += ["## Versions", _table(["package", "version"], versions(self.target))]
        return "\n\n".join(parts) + "\n"

    def _outcome(self, refused: BaseException | None) -> str:
        options = ", ".join(f"{k}={v!r:.80}" for k, v in self.options.items()) or "none"
        end = "refused" if refused is not None else "done"
        place = f", written to `{self.path}`" if self.path is not None and refused is None else ""
        return f"Target `{self.target.name}`, options {options}: {end}{place}."

    def _captured(self, graph: Graph, found: Facts) -> list[str]:
        ports = [["input", t.name, t.type] for t in found.inputs] + [["output", t.name, t.type] for t in found.outputs]
        dynamic = [f"- `{name}`: {ends}" for name, ends in found.dynamic.items()]
        guards = guards_code(getattr(graph.context, "program", None)) or ()
        held = ["It holds where:", "\n".join(f"- `{g}`" for g in guards)] if guards else []
        notes = "\n".join(f"- {' '.join(n.split())}" for n in notes_of(graph))
        parts = ["## Captured", notes, _table(["", "name", "type"], ports), "\n".join(dynamic), *held]
        return [p for p in parts if p]

    def _ops(self, found: Facts) -> list[str]:
        rows = [
            [f"`{o.op}`", str(o.count), short(o.flops) if o.flops else "", o.ways[self.target.name]] for o in found.ops
        ]
        sums = f"{counted(found.nodes, 'node')}, {short(found.flops, 'FLOP')}"
        said = f"{sums}. A body is torch's own decomposition of the op."
        return ["## Ops", said, _table(["op", "count", "FLOP", f"in {self.target.name}"], rows)]

    def _weights(self, found: Facts) -> list[str]:
        rows = [[w.type, str(w.tensors), f"{w.numbers:,}", short(w.bytes, "B")] for w in found.weights]
        return ["## Weights", _table(["type", "tensors", "numbers", "size"], rows)] if rows else []


def _fixed(graph: Graph, found: Facts) -> list[str]:
    """The numbers that equal a size of the example."""
    rows = [
        [f"`{x.where}`", f"`{x.what}`", " ".join(x.symbols), x.module, x.source] for x in literals(graph, found.sizes)
    ]
    title = "## Numbers that equal a size of the example"
    said = "Each may be fixed where the size is not, or be equal by chance: the runs at other sizes below tell."
    return [title, said, _table(["where", "number", "size", "module", "source"], rows)] if rows else []


def _path(report: Any) -> str | os.PathLike[str]:
    if isinstance(report, (bool, int)) or not isinstance(report, (str, os.PathLike)):
        raise TypeError(f"report={report!r:.60}: give the path of a file, report='report.md'")
    return report


def _ours(path: Path) -> None:
    if path.suffix.lower() != ".md":
        raise OutputError(f"{path.name:.100} is no name for a report: call it {path.stem}.md")
    if path.is_dir() or (path.exists() and not head(path, 1000).startswith(_TITLE.encode())):
        raise OutputError(f"{path} is no report of an export and stays as it is; choose another path")


def _error(row: Any) -> str:
    return (
        f"not compared: {row.skipped}"
        if row.skipped
        else f"{row.error:.3g}" + (f", {row.reason}" if row.reason else "")
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([" ".join(c.replace("|", "\\|").split()) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def versions(target: Target) -> list[list[str]]:
    """Python, the machine, and the packages that an export to this target stands on."""
    backend = type(target).__module__.partition(".")[0]
    names = dict.fromkeys(["ir", "torch", backend])
    with contextlib.suppress(metadata.PackageNotFoundError):
        needs = (re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in metadata.requires(backend) or ())
        names |= dict.fromkeys(needs)
    found = [["Python", sys.version.split()[0]], ["machine", f"{platform.system()} {platform.machine()}"]]
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append([name, metadata.version(name)])
    return found
