"""ONNX's operator schemas, read once for each op and opset, and the types of results by them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx.defs

from ir.types import DType
from onnx_backend.building.dtypes import FROM_SCHEMA

_FLOATS = (onnx.defs.OpSchema.AttrType.FLOAT, onnx.defs.OpSchema.AttrType.FLOATS)


@dataclass(frozen=True)
class Formal:
    """One input or output: its type variable (or its only type), what is allowed, whether it repeats."""

    name: str
    variable: str
    allowed: frozenset[DType]
    variadic: bool
    optional: bool


@dataclass(frozen=True)
class OpSchema:
    """What emission checks of an op at one opset."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: Mapping[str, bool]  # whether it is a float or floats
    required: frozenset[str]
    min_inputs: int
    min_outputs: int

    def input(self, index: int) -> Formal | None:
        """The formal input at a position; a variadic one takes all the rest."""
        if index < len(self.inputs):
            return self.inputs[index]
        last = self.inputs[-1] if self.inputs else None
        return last if last is not None and last.variadic else None

    def output(self, index: int) -> Formal:
        """The formal output at a position; a variadic one makes all the rest."""
        return self.outputs[min(index, len(self.outputs) - 1)]


@cache
def op_schema(op: str, opset: int, domain: str = "") -> OpSchema | None:
    """The schema of an op as of an opset, or None where ONNX has none."""
    try:
        s = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if s.deprecated:
        return None
    constraints = {c.type_param_str: frozenset(c.allowed_type_strs) for c in s.type_constraints}
    attributes = s.attributes
    return OpSchema(
        inputs=tuple(_formal(f, constraints) for f in s.inputs),
        outputs=tuple(_formal(f, constraints) for f in s.outputs),
        attributes={n: a.type in _FLOATS for n, a in attributes.items()},
        required=frozenset(n for n, a in attributes.items() if a.required),
        min_inputs=s.min_input,
        min_outputs=s.min_output,
    )


@cache
def first_opset(op: str, domain: str = "") -> int | None:
    """The lowest opset that has the op, or None."""
    return next((v for v in range(1, onnx.defs.onnx_opset_version() + 1) if op_schema(op, v, domain)), None)


def near(op: str) -> str:
    """The op of the most similar name, to be said where there is none."""
    names = {s.name.lower(): s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    found = difflib.get_close_matches(op.lower(), names, 1)
    return f"; the nearest is {names[found[0]]}" if found else "; one of your own has a domain, as in 'custom::Name'"


def _formal(f: Any, constraints: dict[str, frozenset[str]]) -> Formal:
    option = onnx.defs.OpSchema.FormalParameterOption
    names = constraints.get(f.type_str, frozenset((f.type_str,)))
    allowed = frozenset(FROM_SCHEMA[n] for n in names if n in FROM_SCHEMA)
    return Formal(f.name, f.type_str, allowed, f.option == option.Variadic, f.option == option.Optional)


def bind_types(schema: OpSchema, inputs: Sequence[DType | None]) -> dict[str, DType]:
    """The element type of each type variable, from the inputs that are there."""
    bound: dict[str, DType] = {}
    for i, dtype in enumerate(inputs):
        formal = schema.input(i)
        if formal is not None and dtype is not None and not (formal.variadic and formal.variable in bound):
            bound.setdefault(formal.variable, dtype)
    return bound
