"""The table of nodes as node data of Model Explorer, which colours its graph of the .pt2 or .onnx file by it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ir.debug.profile import places
from ir.debug.table import Row, Table, shade
from ir.errors import OutputError
from ir.files import staged
from ir.graph import Graph
from ir.lower import lower
from ir.opened import Place
from ir.target import Target

Column = Literal["own", "inherited"]


def node_data(table: Table, known: Mapping[str, Place], column: Column = "own") -> dict[str, Any]:
    """One column of the table by the names that nodes have in a file.

    It has the form of Model Explorer's `GraphNodeData`, which stands for whatever graph is open: the error of scale is
    the value, and the background is the redder the less rounding explains it.

    Args:
        table: a table.
        known: the nodes by every name that they have somewhere; see `ir.debug.profile.places`.
        column: "own" for the error of each node alone, "inherited" for that in the whole program.
    """
    rows = {r.name: r for r in table.rows if not r.within}  # two branches may have nodes of one name
    found = {name: rows[place.name] for name, place in known.items() if place.name in rows}
    results = {name: made for name, row in found.items() if (made := _result(row, column))}
    return {"name": f"{column} error on {table.target}", "results": results}


def _result(row: Row, column: Column) -> dict[str, Any] | None:
    error, score = (row.own, row.score) if column == "own" else (row.inherited, row.whole_score)
    if error is None:
        return None
    value = error.relative if math.isfinite(error.relative) else str(error.relative)  # JSON has no infinity
    return {"value": value, "bgColor": colour(shade(score))}


def colour(part: float) -> str:
    """From white to red."""
    ends = ((255, 220), (255, 60), (255, 60))
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in ends)


def check_folder(folder: Path) -> None:
    """Whether the files may be written there.

    Raises:
        OutputError: what lies there is no folder.
    """
    lowest = next(p for p in (folder, *folder.absolute().parents) if p.exists() or p == p.parent)
    if not lowest.is_dir():
        raise OutputError(f"{folder}: {lowest} is a file; the data for Model Explorer goes to a folder")


def write_node_data(table: Table, graph: Graph, target: Target, folder: Path) -> list[Path]:
    """Both columns as files of a folder, which is made."""
    known = _names(graph) | places(graph, target, lower(graph, target, target.registry))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for column in ("own", "inherited"):
        path = folder / f"{table.target}-{column}.json"
        with staged(path) as temporary:
            temporary.write_text(json.dumps(node_data(table, known, column), indent=1))
        written.append(path)
    return written


def _names(graph: Graph) -> dict[str, Place]:
    """The names that torch.export gives: a node of several results has its own, without the number of the result."""
    named = [(n.name if n.returns == "one" else n.name.removesuffix("_0"), n) for n in graph.nodes if n.outputs]
    return {name: Place.of(n) for name, n in named}
