"""Graphs and programs as notebooks show them: a few tables of HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from ir.graph import Graph
from ir.verify import Report
from ir.view.facts import Facts, facts, short
from ir.words import counted

_OPS = 15


def graph_table(graph: Graph) -> str:
    """A graph's summary."""
    return _tables(facts(graph))


def summary_of(program: Any) -> str:
    """A program's summary: its graph, its file, and how it compares with torch."""
    place = html.escape(str(program.path)) if program.path is not None else "not written"
    rows = [[str(r)] for r in program.report.rows]
    compared = _table(["compared with torch"], rows) if rows else "<p>not compared with torch</p>"
    return f"<p><b>{html.escape(program.target.name)} program</b>, {place}</p>{_tables(facts(program.graph))}{compared}"


def report_table(report: Report) -> str:
    """The rows of a comparison, and its notes."""
    rows = [
        [r.name, r.sizes, f"{r.dtype}{list(r.shape)}", f"{r.error:.3g}", r.skipped or r.reason] for r in report.rows
    ]
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in report.notes)
    return _table(["result", "at", "type", "largest error", ""], rows) + notes


def _tables(found: Facts) -> str:
    weights = f"{short(found.numbers)} weights ({short(found.bytes, 'B')})"
    said = f"{counted(found.nodes, 'node')}, {weights}, {short(found.flops, 'FLOP')}"
    ports = [["input", t.name, t.type] for t in found.inputs] + [["output", t.name, t.type] for t in found.outputs]
    ops = [[o.op, str(o.count), short(o.flops) if o.flops else ""] for o in found.ops[:_OPS]]
    more = f"<p>and {len(found.ops) - _OPS} more ops</p>" if len(found.ops) > _OPS else ""
    return f"<p>{said}</p>{_table(['', 'name', 'type'], ports)}{_table(['op', 'count', 'FLOP'], ops)}{more}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(line(r, "td") for r in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"
