"""The debugger's table of nodes as the page of a graph shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir.debug.table import Row, Table, shade

_WORST = 20  # nodes that the page lists


def errors_of(table: Table, places: Mapping[str, int]) -> dict[str, Any]:
    """The table for the page's script: what to say of each node, by its place, and how red it is."""
    shown = {places[r.name]: r for r in table.rows if r.name in places}
    worst = [places[r.name] for r in table.ranked[:_WORST] if shade(r.score) and r.name in places]
    return {"head": table.head(), "worst": worst, "nodes": {place: _said(r) for place, r in shown.items()}}


def _said(row: Row) -> dict[str, Any]:
    lines = [f"own error: {row.own or row.note or 'not known'}"]
    if row.own and row.own.place is not None:
        lines.append(f"largest at {list(row.own.place)}: {row.own.got:.9g} instead of {row.own.wanted:.9g}")
    lines.append(f"torch's own rounding here: {row.torch_own or 'not known'}")
    lines.append(f"in the whole program: {row.inherited or 'not known'}")
    lines.append(f"torch's rounding up to here: {row.torch_whole or 'not known'}")
    lines += [f"makes {row.makes} of finite numbers"] if row.makes else []
    lines += [row.note] if row.note and row.own else []
    lines += [f"target ops: {', '.join(row.ops)}"] if row.ops else []
    return {"own": round(shade(row.score), 3), "whole": round(shade(row.whole_score), 3), "lines": lines}
