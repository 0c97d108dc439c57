"""The table of nodes: what each makes of torch's own operands, and what it makes in the whole program."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from typing import Any

import torch

from ir.debug.errors import Error
from ir.debug.literals import Literal
from ir.graph import Node
from ir.words import counted

_SHOWN = 20
_LITERALS = 10
_FEW = 8  # roundings up to which a node counts as exact


@dataclass(frozen=True)
class Row:
    """One node.

    Attributes:
        node: the node of the graph.
        own: the error of the node alone in the target's runtime, fed torch's own operands; None where it was not run.
        inherited: the error of its result in the whole program; None where the target gives no such value.
        torch_own: torch's own rounding: the node in its element type against float64, from the same operands.
        torch_whole: the rounding that reached its result in torch: the whole program against float64.
        ops: the target's ops that it became.
        makes: "nan" or "inf" where its result in the target is not finite though its operands are.
        torch_makes: the same of torch's own.
        note: why something of this is missing.
        within: the path of the nodes that hold it, of a node in a branch or a loop.
        held: a node in the branch or the loop that this one holds differs by itself: it is no fault of this one.
    """

    node: Node
    shape: tuple[int, ...]
    dtype: str
    own: Error | None = None
    inherited: Error | None = None
    torch_own: Error | None = None
    torch_whole: Error | None = None
    ops: tuple[str, ...] = ()
    makes: str = ""
    torch_makes: str = ""
    note: str = ""
    within: str = ""
    held: bool = False

    @property
    def name(self) -> str:
        """The value that the node makes, behind the path of what holds it: "cond_0/add"."""
        return f"{self.within}/{self.node.name}" if self.within else self.node.name

    @property
    def op(self) -> str:
        """The op as torch names it."""
        return self.node.overload

    @property
    def module(self) -> str:
        """The path of the nn.Module that ran it."""
        return self.node.origin.module

    @property
    def source(self) -> str:
        """ "model.py:12", empty where it is not known."""
        return self.node.origin.place

    @property
    def score(self) -> float:
        """The own error in units of what rounding explains: torch's own at this node, at least four units of the last
        place of the largest magnitude. Rows are ranked by it; a few units are the runtime's other order of sums."""
        if self.own is None:
            return math.inf if self.note and not self.note.startswith("not compared") else 0.0
        return self._in_roundings(self.own, self.torch_own)

    @property
    def whole_score(self) -> float:
        """The same of the error in the whole program, beside the rounding that reaches the node in torch."""
        return 0.0 if self.inherited is None else self._in_roundings(self.inherited, self.torch_whole)

    def _in_roundings(self, error: Error, torchs: Error | None) -> float:
        if error.largest == 0 or math.isinf(error.largest):
            return error.largest
        noise = 4 * _rounding(self.dtype) * error.scale
        if torchs is not None and math.isfinite(torchs.largest):
            noise = max(noise, torchs.largest)
        return error.largest / noise if noise else math.inf

    @property
    def wrong(self) -> bool:
        """Whether the node alone differs beyond verify's tolerances, or was refused or failed."""
        return not self.held and (bool(self.own and self.own.reason) or self.score == math.inf)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        origin = self.node.origin
        errors = {k: e and e.data() for k, e in self._errors.items()}
        return {
            "node": self.name, "op": self.op, "shape": list(self.shape), "dtype": self.dtype, "module": self.module,
            "module_class": origin.module_class, "file": origin.file, "line": origin.line, "code": origin.code,
            "target_ops": list(self.ops), **errors, "score": self.score, "wrong": self.wrong, "makes": self.makes,
            "torch_makes": self.torch_makes, "note": self.note,
        }  # fmt: skip

    @property
    def _errors(self) -> Mapping[str, Error | None]:
        return {
            "own": self.own, "inherited": self.inherited, "torch_own": self.torch_own, "torch_whole": self.torch_whole
        }  # fmt: skip

    def __str__(self) -> str:
        """The sentence that an error carries."""
        place = f" in {self.module}" if self.module else ""
        lines = [f"%{self.name} = {self.op}{place}: {self.dtype}{list(self.shape)}"]
        if self.node.origin.file:
            code = f"  `{self.node.origin.code}`" if self.node.origin.code else ""
            lines.append(f"at {self.node.origin.file}:{self.node.origin.line}{code}")
        if self.ops:
            lines.append(f"target ops: {', '.join(self.ops)}")
        lines.append(f"own error: {self.own or self.note}, torch's own rounding here: {self.torch_own or 'not known'}")
        if self.own and self.own.place is not None:
            lines.append(f"largest at {list(self.own.place)}: {self.own.got:.9g} instead of {self.own.wanted:.9g}")
        lines.append(f"error in the whole program: {self.inherited or 'not known'}")
        return "\n  ".join(lines)


def _rounding(dtype: str) -> float:
    """What rounding to this element type loses of a number at most; of integers and bools that of float32."""
    found: torch.dtype = getattr(torch, dtype)
    return torch.finfo(found if found.is_floating_point or found.is_complex else torch.float32).eps / 2


def shade(score: float) -> float:
    """How red a node is that errs by so many roundings, from 0 to 1; a few are no fault."""
    if score <= _FEW:
        return 0.0
    return min(1.0, math.log10(1 + score) / 6) if math.isfinite(score) else 1.0


@dataclass(frozen=True)
class Table:
    """Every node of a program on one target, in the order of the graph; `ranked` is by own error.

    Attributes:
        target: the target's name.
        sizes: the dynamic dimensions of this run.
        notes: what else there is to say.
        seconds: what making it took.
        literals: the numbers in the graph that equal the example's size of a dynamic dimension.
    """

    target: str
    rows: tuple[Row, ...]
    sizes: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    literals: tuple[Literal, ...] = ()

    @cached_property
    def ranked(self) -> tuple[Row, ...]:
        """The rows, the one whose own error rounding explains least first; of equal ones the first in the graph."""
        return tuple(sorted(self.rows, key=lambda r: 0.0 if r.held else -r.score))

    @property
    def wrong(self) -> tuple[Row, ...]:
        """The rows that differ by themselves beyond tolerance, worst first."""
        return tuple(r for r in self.ranked if r.wrong)

    @property
    def ok(self) -> bool:
        """Whether every node that was run alone agrees with torch."""
        return not self.wrong

    @property
    def first(self) -> Row | None:
        """The first node in the order of the graph that differs beyond tolerance, by itself or in the whole program."""
        return next((r for r in self.rows if r.wrong or (r.inherited and r.inherited.reason)), None)

    @property
    def first_nonfinite(self) -> Row | None:
        """The first node that makes nan or infinity of finite operands, in the target, or in torch itself."""
        made = [r for r in self.rows if r.makes or r.torch_makes]
        return next((r for r in made if "nan" in (r.makes, r.torch_makes)), made[0] if made else None)

    def row(self, name: str) -> Row:
        """The row of the node that makes this value.

        Raises:
            KeyError: there is none.
        """
        for r in self.rows:
            if r.name == name or (not r.within and any(v.name == name for v in r.node.outputs)):
                return r
        raise KeyError(f"no row of this table has the value {name!r:.60}")

    def data(self) -> dict[str, Any]:
        """For programs: plain Python, the rows in the order of the graph."""
        return {
            "target": self.target, "sizes": dict(self.sizes), "notes": list(self.notes), "seconds": self.seconds,
            "literals": [asdict(x) for x in self.literals], "rows": [r.data() for r in self.rows],
        }  # fmt: skip

    def json(self) -> str:
        """`data` as JSON; infinity and nan are texts there."""
        return json.dumps(_plain(self.data()), indent=1)

    def text(self, shown: int | None = _SHOWN, *, in_order: bool = False) -> str:
        """The table for people: `shown` rows (None: all), the worst first unless `in_order`."""
        chosen = (self.rows if in_order else self.ranked)[:shown]
        return "\n".join([*self.head(), "", *columns([_HEADS, *map(_cells, chosen)]), *self._rest(len(chosen))])

    def head(self) -> list[str]:
        """What there is to say of all rows: how many differ, the first that is not finite, notes."""
        sizes = ", ".join(f"{n}={s}" for n, s in self.sizes.items())
        at = f" at {sizes}" if sizes else ""
        wrong = len(self.wrong)
        told = "1 differs by itself" if wrong == 1 else f"{wrong} differ by themselves"
        verdict = told if wrong else "none differs by itself beyond tolerance"
        lines = [f"{counted(len(self.rows), 'node')} on {self.target}{at}: {verdict} ({self.seconds:.1f} s)"]
        first = self.first_nonfinite
        if first is not None:
            kinds = [f"{k} in {w}" for k, w in ((first.makes, self.target), (first.torch_makes, "torch")) if k]
            lines.append(
                f"first node that makes {' and '.join(kinds)}: %{first.name} = {first.op} {first.module}".rstrip()
            )
        return [*lines, *self.notes]

    def _rest(self, shown: int) -> list[str]:
        more = len(self.rows) - shown
        lines = [f"and {more} more"] if more > 0 else []
        if self.literals:
            lines += ["", "numbers that equal a size of the example, and may be fixed where the size is not:"]
            lines += [f"  {x}" for x in self.literals[:_LITERALS]]
            lines += [f"  and {len(self.literals) - _LITERALS} more"] if len(self.literals) > _LITERALS else []
        return lines

    def html(self) -> str:
        """A table whose rows are the redder the less rounding explains their own error."""
        head = "<br>".join(map(escape, self.head()))
        cells = [f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in _HEADS)}</tr>"]
        for row in self.ranked[:200]:
            style = f"background:rgba(220,60,60,{shade(row.score):.2f})" if shade(row.score) else ""
            cells.append(f'<tr style="{style}">{"".join(f"<td>{escape(c)}</td>" for c in _cells(row))}</tr>')
        return f"<p>{head}</p><table>{''.join(cells)}</table>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.html()

    def __str__(self) -> str:
        return self.text()


_HEADS = ("node", "op", "own", "whole program", "torch's rounding", "module", "source", "target ops")


def _cells(row: Row) -> tuple[str, ...]:
    own = str(row.own) if row.own else row.note.splitlines()[0][:40] if row.note else "-"
    rounding = (
        f"{row.torch_own.relative:.1g} / {row.torch_whole.relative:.1g}" if row.torch_own and row.torch_whole else "-"
    )
    whole = f"{row.inherited.relative:.2g}" if row.inherited else "-"
    if row.makes:
        whole += f" makes {row.makes}"
    ops = ", ".join(row.ops[:4]) + (f" and {len(row.ops) - 4} more" if len(row.ops) > 4 else "")
    return row.name, row.op.removeprefix("aten::"), own, whole, rounding, row.module, row.source, ops


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _plain(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(v) for v in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
