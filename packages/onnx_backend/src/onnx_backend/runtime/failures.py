"""What stopped a run: onnxruntime names the node, which is a condition or comes from a line of the model's."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir

from ir.errors import RefusedError
from ir.opened import Place
from onnx_backend.building.names import PLACE

_NAMED = re.compile(r"Name:'([^']*)'")
_CONDITION = re.compile(r"[^ ]* (needs|asserts) (.*)", re.DOTALL)


def places_of(model: onnx_ir.Model) -> dict[str, Place]:
    """The places of nodes that were just made, by name; of functions, which runs inline under other names, none."""
    nodes = onnx_ir.traversal.RecursiveGraphIterator(model.graph)
    return {n.name: n.meta[PLACE] for n in nodes if n.name and PLACE in n.meta}


def unmet_condition(error: Exception, places: Mapping[str, Place]) -> RefusedError | None:
    """What to raise where the node that failed is a condition on sizes or data; None where it is another."""
    found = _CONDITION.fullmatch(_name(error))
    if found is None:
        return None
    way = f"the program needs {found[2]}; capture the model anew for other sizes"
    if found[1] == "asserts":
        way = f"what the model asserts does not hold: {found[2]}"
    return RefusedError(f"target 'onnx' refuses to run: {way}{where(error, places)}")


def where(error: Exception, places: Mapping[str, Place]) -> str:
    """A line that says which of the model's ops failed; "" where nothing tells."""
    place = places.get(_name(error))
    if place is None:
        return ""
    op = "" if place.op.startswith("ir::") else f"in {place.op or place.name}"  # the model has no such op
    parts = [op, place.source and f"at {place.source}", place.module and f" in {place.module}"]
    return f"\n  {' '.join(filter(None, parts))}" if op or place.source else ""


def _name(error: Exception) -> str:
    found = _NAMED.search(str(error))
    return found[1] if found else ""
