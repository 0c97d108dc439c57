"""What `ir show` prints: the facts as tables."""

from __future__ import annotations

from rich.table import Table

from ir.cli.printing import Console
from ir.view.facts import Facts, Tensor, joined, short
from ir.words import counted

_OPS = 25


def show(facts: Facts, console: Console) -> None:
    """The summary: what goes in and out, what is stored, what is computed and how each target takes it."""
    console.print(_headline(facts), highlight=False, soft_wrap=True, markup=False)
    console.print()
    for title, rows in (("inputs", facts.inputs), ("outputs", facts.outputs)):
        console.print(_tensors(title, rows), markup=False)
    for table in (_weights(facts), _largest(facts), _ops(facts)):
        if table.row_count:
            console.print()
            console.print(table, markup=False)
    for target in facts.targets:
        missing = [o.op for o in facts.ops if o.ways[target] == "missing"]
        if missing:
            console.print(f"\n{target} lacks {joined(missing)}", highlight=False, soft_wrap=True, markup=False)


def _headline(facts: Facts) -> str:
    dynamic = "; ".join(f"{n} {r}" for n, r in facts.dynamic.items())
    at = f" at {', '.join(f'{n}={s}' for n, s in facts.sizes.items())}" if facts.sizes else ""
    said = [counted(facts.nodes, "node"), f"{short(facts.numbers)} weights ({short(facts.bytes, 'B')})"]
    said.append(f"{short(facts.flops, 'FLOP')}{at}")
    return f"{', '.join(said)}" + (f"\ndynamic: {dynamic}" if dynamic else "")


def _table(*columns: str) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 or name in _LEFT else "right", overflow="fold")
    return table


_LEFT = {"type", "", "onnx", "nnef", "khronos", "eager", "stablehlo"}


def _tensors(title: str, rows: list[Tensor]) -> Table:
    table = _table(title, "")
    for row in rows:
        table.add_row(row.name, row.type)
    return table


def _weights(facts: Facts) -> Table:
    table = _table("weights", "tensors", "numbers", "size")
    for row in facts.weights:
        table.add_row(row.type, str(row.tensors), f"{row.numbers:,}", short(row.bytes, "B"))
    return table


def _largest(facts: Facts) -> Table:
    table = _table("largest weights", "type", "size")
    for row in facts.largest:
        table.add_row(row.name, row.type, short(row.bytes, "B"))
    return table


def _ops(facts: Facts) -> Table:
    table = _table("ops", "count", "FLOP", *facts.targets)
    for op in facts.ops[:_OPS]:
        ways = [op.ways[t].replace("missing", "MISSING") for t in facts.targets]
        table.add_row(op.op.removeprefix("aten::"), str(op.count), short(op.flops) if op.flops else "", *ways)
    if len(facts.ops) > _OPS:
        table.add_row(f"and {len(facts.ops) - _OPS} more (--json has them all)")
    return table
