"""One page of HTML for a graph, with everything in it: nothing is fetched."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ir.debug.table import Table
from ir.errors import OutputError
from ir.files import head, staged, writable
from ir.graph import Graph, Node, Value
from ir.text import arg_text
from ir.view.errors import errors_of
from ir.view.facts import Facts, all_nodes, flops_of, short
from ir.words import counted

_MARK = b"<!-- a page of `ir show --html` -->"


def write(
    graph: Graph, facts: Facts, path: str | os.PathLike[str], title: str = "", tables: Sequence[Table] = ()
) -> None:
    """Write the page of a graph; raises as `check_path`."""
    with staged(path, check_path) as temporary:
        temporary.write_text(page(graph, facts, title, tables), encoding="utf-8")


def check_path(path: Path) -> None:
    """Whether a page may be written there.

    Raises:
        OutputError: the name is none of a page, or what lies there is no page of ours.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path.name:.100} is no name for a page: call it {path.stem}.html")
    writable(path)
    if path.is_dir() or (path.exists() and _MARK not in head(path, 1000)):
        raise OutputError(f"{path} is no page of ir show and stays as it is; choose another path")


def page(graph: Graph, facts: Facts, title: str = "", tables: Sequence[Table] = ()) -> str:
    """The page of a graph as text; with tables of the debugger it opens in the colours of the first."""
    folder = files("ir.view") / "assets"
    data = json.dumps(Content(graph, facts, title, tables).data(), separators=(",", ":")).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(title or graph.name), "DATA": data}
    parts |= {"STYLE": (folder / "page.css").read_text("utf-8"), "SCRIPT": (folder / "page.js").read_text("utf-8")}
    made = (folder / "page.html").read_text("utf-8")
    for name, text in parts.items():
        made = made.replace(f"%{name}%", text)
    return made


class Content:
    """A graph as the page's script reads it.

    `scopes` are calls of modules: the nodes that follow one another in one. Its parts are the numbers of nodes, and
    below zero those of the scopes in it; 0 is the graph itself.
    """

    def __init__(self, graph: Graph, facts: Facts, title: str, tables: Sequence[Table] = ()) -> None:
        self.graph, self.facts, self.title, self.tables = graph, facts, title, tables
        self.every = all_nodes(graph)
        self.flops = flops_of(graph, self.every, facts.sizes)
        self.place = {v: i for i, n in enumerate(self.every) for v in n.outputs}
        self.place |= {v: -1 - i for i, v in enumerate(graph.inputs)}
        self.weights = {v: i for i, v in enumerate(graph.weights)}
        self.names = {v: w.name for v, w in graph.weights.items()}
        self.scopes: list[dict[str, Any]] = [_scope("", "", "", 0, 0)]
        self._open: list[tuple[str, int]] = [("", 0)]
        self.lines: dict[tuple[str, str], int] = {("", ""): 0}

    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        nodes = [self._node(i, n) for i, n in enumerate(self.every)]
        self._sum_weights(nodes)
        facts = self.facts
        said = [counted(facts.nodes, "node"), f"{short(facts.numbers)} weights ({short(facts.bytes, 'B')})"]
        return {
            "title": self.title,
            "headline": ", ".join([*said, short(facts.flops, "FLOP")]),
            "facts": {"ops": facts.data()["ops"], "largest": facts.data()["largest"]},
            "inputs": [{"name": v.name, "type": str(v.type)} for v in self.graph.inputs],
            "outputs": [self._output(name, v) for name, v in self.graph.results.items()],
            "nodes": nodes,
            "scopes": self.scopes,
            "weights": [[w.name, str(v.type), v.type.nbytes] for v, w in self.graph.weights.items()],
            "lines": [list(line) for line in self.lines],
            "ways": {t: {o.op: o.ways[t] for o in facts.ops} for t in facts.targets},
            "errors": self._errors(),
        }

    def _errors(self) -> dict[str, Any]:
        places = {n.name: i for i, n in reversed(list(enumerate(self.every)))}
        return {t.target: errors_of(t, places) for t in self.tables}

    def _output(self, name: str, value: Value) -> dict[str, Any]:
        return {"name": name, "type": str(value.type), "source": self.place.get(value)}

    def _node(self, index: int, node: Node) -> dict[str, Any]:
        scope = self._enter(index, node)
        read = [v for v in dict.fromkeys(node.inputs) if v in self.place]
        return {
            "o": node.overload,
            "n": node.name,
            "t": ", ".join(str(v.type) for v in node.outputs),
            "s": scope,
            "i": [[self.place[v], str(v.type)] for v in read],
            "w": [self.weights[v] for v in dict.fromkeys(node.inputs) if v in self.weights],
            "a": [f"{k}={self._text(a)}" for k, a in node.args.items() if a is not None],
            "l": self._line(node),
            "f": self.flops[index],
        }

    def _text(self, arg: Any) -> str:
        return self.names.get(arg, arg.name) if isinstance(arg, Value) else arg_text(arg)

    def _line(self, node: Node) -> int:
        origin = node.origin
        line = (f"{origin.file}:{origin.line}", origin.code) if origin.file else ("", "")
        return self.lines.setdefault(line, len(self.lines))

    def _enter(self, index: int, node: Node) -> int:
        """The scope of the next node, which opens and closes others."""
        entries = list(_modules(node))
        kept = 1
        while kept < len(self._open) and kept <= len(entries) and self._open[kept][0] == entries[kept - 1][0]:
            kept += 1
        del self._open[kept:]
        for path, kind in entries[kept - 1 :]:
            outer, parent = self._open[-1]
            label = path.removeprefix(f"{outer}.") if outer else path
            self.scopes.append(_scope(path, kind, label, parent, index))
            number = len(self.scopes) - 1
            self.scopes[parent]["parts"].append(-number)
            self._open.append((path, number))
        for _, number in self._open:
            self.scopes[number]["last"] = index
        self.scopes[self._open[-1][1]]["parts"].append(index)
        return self._open[-1][1]

    def _sum_weights(self, nodes: list[dict[str, Any]]) -> None:
        sizes = [v.type.nbytes for v in self.graph.weights]
        for scope in self.scopes:
            read = {w for n in nodes[scope["first"] : scope["last"] + 1] for w in n["w"]}
            scope["bytes"] = sum(sizes[w] for w in read)
        self.scopes[0]["label"] = self.title or self.graph.name


def _scope(path: str, kind: str, label: str, parent: int, first: int) -> dict[str, Any]:
    made: Mapping[str, Any] = {"path": path, "class": kind, "label": label, "parent": parent, "first": first}
    return {**made, "last": first, "parts": [], "bytes": 0}


def _modules(node: Node) -> list[tuple[str, str]]:
    """The modules that a node lies in, outermost first, each with its class."""
    entries = [(str(path), kind) for path, kind in (node.origin.modules or {}).values()]
    names = [(path, kind if isinstance(kind, str) else kind.__qualname__) for path, kind in entries]
    return [(path, kind.rpartition(".")[2]) for path, kind in names if path]
