"""Names of operators in the sources, against torch: a misspelt one, or one that torch dropped, is never met."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eager_backend.building.source import _INFIX
from ir.dim_functions import FUNCTIONS
from ir.importer.schema import op_schema, packet_of
from ir.importer.torch_api import OpOverloadPacket
from ir.passes import promote, split_complex

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"(aten|prims|higher_order)::[a-zA-Z_]\w*(\.\w+)?")
aten = torch.ops.aten

# Tables by bare names: op -> the arguments that it says something of.
TABLES: dict[str, Mapping[str, Any]] = {
    "promote.TO_RESULT": promote.TO_RESULT,
    "promote.TOGETHER": promote.TOGETHER,
    "promote.TO_BOOL": promote.TO_BOOL,
    "split_complex.PARTWISE": split_complex.PARTWISE,
    "split_complex.PRODUCTS": split_complex.PRODUCTS,
    "split_complex.ONLY": split_complex.ONLY,
}


def written(path: Path) -> Iterator[str]:
    """The names in a file, beginnings of names left out."""
    tree = ast.parse(path.read_text())
    begun = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if (
            node not in begun
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and NAME.fullmatch(node.value)
        ):
            yield node.value


def exists(name: str) -> bool:
    op, _, overload = name.partition(".")
    if op.startswith("higher_order::"):
        return hasattr(torch.ops.higher_order, op.partition("::")[2])
    packet = packet_of(op)
    return packet is not None and (not overload or overload in packet.overloads())


@pytest.mark.parametrize("package", sorted(p.name for p in (ROOT / "packages").iterdir() if (p / "src").is_dir()))
def test_every_name_in_the_sources_is_an_op(package):
    files = sorted((ROOT / "packages" / package / "src").rglob("*.py"))
    wrong = {name: path.name for path in files for name in written(path) if not exists(name)}
    assert not wrong


@pytest.mark.parametrize("table", TABLES)
def test_tables_name_arguments_of_ops(table):
    wrong = []
    for name, arguments in TABLES[table].items():
        packet = packet_of(f"aten::{name}")
        known = {a for o in packet.overloads() for a in op_schema(getattr(packet, o)).names} if packet else set()
        if packet is None or (known and not known & {*arguments, "size"}):  # a factory has no operand
            wrong.append(name)
    assert not wrong


def test_comparisons_are_those_of_torch():
    """Ops of two tensors that give a truth value for each pair of elements."""
    x, found = torch.ones(2), set()
    for packet in (getattr(aten, name) for name in dir(aten)):
        overload = getattr(packet, "Tensor", None) or getattr(packet, "default", None)
        if not isinstance(packet, OpOverloadPacket) or overload is None:
            continue
        schema = op_schema(overload)
        if schema.names == ("self", "other") and not schema.writes:
            with contextlib.suppress(RuntimeError, TypeError):  # of integers alone
                made = overload(x, x)
                found |= {packet.__name__} if isinstance(made, Tensor) and made.dtype is torch.bool else set()
    of_truths = {name for name, operands in promote.TO_BOOL.items() if len(operands) == 2}
    assert found == {*promote.TOGETHER, *of_truths} - {"equal", "isclose"}  # one value for all; with tolerances


@pytest.mark.parametrize("name", _INFIX)
def test_operators_of_python_compute_sizes(name):
    """What the eager target writes between two sizes gives what the function of that name gives."""
    for a, b in ((7, 2), (2, 7), (3, 3), (0, 5)):
        assert eval(f"{a} {_INFIX[name]} {b}") == FUNCTIONS[name](a, b)
