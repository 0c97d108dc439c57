"""A call that is watched: a hook sees the results of every step. The ordinary program pays nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from torch import Tensor

from eager_backend.building.contracts import CompiledProgram
from ir.errors import ExportError

Hook = Callable[[int, tuple[Any, ...]], None]


def watched(program: CompiledProgram, hook: Hook) -> CompiledProgram:
    """A clone whose calls tell the hook of each step: its place in `plan.block.steps`, and what it made."""
    clone = program.clone()
    main = FunctionType(program.plan.watched, clone.constants.globals)
    clone.run = partial(main, hook)
    made: CompiledProgram = clone
    return made


def private(program: CompiledProgram, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs, copied where the model writes to them.

    Raises:
        ExportError: there are more or fewer than the program takes.
    """
    names = [v.name for v in program.graph.inputs]
    if len(inputs) != len(names):
        raise ExportError(f"{len(inputs)} tensors for the {len(names)} inputs {', '.join(names)}")
    return [t.clone() if n in program.graph.updates else t for n, t in zip(names, inputs, strict=True)]
