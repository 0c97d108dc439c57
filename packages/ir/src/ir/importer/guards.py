"""What torch.export noted of dynamic sizes while it traced: numbers that it fixed, branches that the code took.

torch checks these notes whenever its own module is called. So does the eager program with those about the model's own
branches; a file for another runtime has no place for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils._sympy.functions import TruncToInt

from ir.dims import Expr
from ir.errors import CaptureError
from ir.graph import Node
from ir.importer.symbols import Symbols
from ir.passes.checks import check

_TORCH = str(Path(torch.__file__).parent)


def refuse_truncated(program: ExportedProgram) -> None:
    """torch.export turns `int()` of a float that a size decides into the number that it is at the traced size.

    Raises:
        CaptureError: there is such a number: it would stand in the graph for all sizes.
    """
    env = _shape_env(program)
    for guard in env.guards if env is not None else ():
        if isinstance(guard.expr, sympy.Eq) and guard.expr.has(TruncToInt):
            made, number = guard.expr.args
            raise CaptureError(
                f"torch.export fixed {made} at {number}, its value at the sizes of the example, {guard.sloc}; write "
                "math.floor or // where the code has int() of a float, and sizes in place of factors"
            )


@dataclass(frozen=True)
class Branch:
    """A condition on sizes that the model's code asked for, and that held for the example."""

    condition: Any  # sympy's
    place: str


def branches(program: ExportedProgram, symbols: Symbols) -> list[Branch]:
    """The conditions on sizes that code outside of torch asked for, each once; torch's own kernels ask for many more.

    Warns:
        UserWarning: there are any: the graph has the side of the example alone.
    """
    names = {s: sympy.Symbol(name, integer=True) for s, name in symbols.names.items()}
    held: dict[str, Branch] = {}
    env = _shape_env(program)
    for guard in env.guards if env is not None else ():
        place = getattr(guard.sloc, "framework_loc", None)
        if place is not None and not place.filename.startswith(_TORCH):
            expr = env.replace(guard.expr)  # sizes that turned out equal are one symbol by now
            condition = expr.xreplace(names)
            if condition.func(*condition.args) is not sympy.true:  # sizes of one name are one size
                where = f"{place.filename}:{place.lineno}"
                held[f"{condition}  ({where})"] = Branch(expr, where)
    if held:
        conditions = "".join(f"\n  {h}" for h in held)
        warnings.warn(f"the model branches on dynamic sizes; the graph is right only where{conditions}", stacklevel=4)
    return list(held.values())


def checks(branches: Sequence[Branch], symbols: Symbols, known: Collection[str | None]) -> list[Node]:
    """The conditions as checks, as far as they are about these symbols."""
    nodes = []
    for branch in branches:
        try:
            condition = symbols.expression(branch.condition)
        except CaptureError:  # the warning has named it
            continue
        if isinstance(condition, Expr) and condition.symbols <= set(known):
            message = f"the graph holds only where {condition}: {branch.place} branched on that"
            nodes.append(check(condition, f"{message}; capture the model anew for other inputs"))
    return nodes


def is_from_file(program: ExportedProgram) -> bool:
    """True if there are conditions, and no note of who asked for them."""
    env = _shape_env(program)
    return (env is None or not env.guards) and bool(getattr(program, "_guards_code", None))


def _shape_env(program: ExportedProgram) -> Any:
    """What torch noted while it traced; None for a program out of a file."""
    fakes = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    return next((f.fake_mode.shape_env for f in fakes if isinstance(f, FakeTensor)), None)
