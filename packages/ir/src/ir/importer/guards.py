"""What torch.export noted of dynamic sizes while it traced: numbers that it fixed, branches that the code took.

torch checks these notes whenever its own module is called. A file for another runtime has no place for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils._sympy.functions import TruncToInt

from ir.errors import CaptureError
from ir.importer.symbols import Symbols

_TORCH = str(Path(torch.__file__).parent)


def refuse_truncated(program: ExportedProgram) -> None:
    """torch.export turns `int()` of a float that a size decides into the number that it is at the traced size.

    Raises:
        CaptureError: there is such a number: it would stand in the graph for all sizes.
    """
    for guard in _noted(program):
        if isinstance(guard.expr, sympy.Eq) and guard.expr.has(TruncToInt):
            made, number = guard.expr.args
            raise CaptureError(
                f"torch.export fixed {made} at {number}, its value at the sizes of the example, {guard.sloc}; write "
                "math.floor or // where the code has int() of a float, and sizes in place of factors"
            )


def warn_of_branches(program: ExportedProgram, symbols: Symbols) -> None:
    """Name the conditions on sizes that code outside of torch asked for; torch's own kernels ask for a great many."""
    names = {s: sympy.Symbol(name, integer=True) for s, name in symbols.names.items()}
    held: dict[str, None] = {}
    for guard in _noted(program):
        place = getattr(guard.sloc, "framework_loc", None)
        if place is not None and not place.filename.startswith(_TORCH):
            condition = guard.expr.xreplace(names)
            if condition.func(*condition.args) is not sympy.true:  # sizes of one name are one size
                held[f"{condition}  ({place.filename}:{place.lineno})"] = None
    if held:
        conditions = "".join(f"\n  {h}" for h in held)
        warnings.warn(f"the model branches on dynamic sizes; the graph is right only where{conditions}", stacklevel=4)


def _noted(program: ExportedProgram) -> Sequence[Any]:
    fakes = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    env = next((f.fake_mode.shape_env for f in fakes if isinstance(f, FakeTensor)), None)
    return env.guards if env is not None else ()
