"""Weights in Q4_0: which ones, their blocks, and the float numbers that they stand for.

tract multiplies by such a weight without unpacking it, as the second operand of a product or as a table of embeddings:
a row is blocks of 32 numbers, each a half-float scale and 32 nibbles, `scale * (nibble - 8)`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ir.errors import RefusedError
from ir.graph import Graph, Value, Weight
from ir.types import DType
from nnef_backend.format.dat import Q4_0_BLOCK, BlockQuantised, dequantise_q4_0, quantise_q4_0

Filter: TypeAlias = "str | Sequence[str] | Callable[[str], bool] | None"

# Where tract reads such a weight: op -> the argument that it may be, with the operations that the handlers emit then.
# Weights that a filter names may be read by custom ops too: there it is looked at when a handler emits an operation.
READERS = {"aten::linear": "weight", "aten::embedding": "weight"}
PACKED_OPS = frozenset({"matmul", "tract_core_einsum", "tract_core_gather", "tract_moe_ffn"})
_FLOATS = (DType.float32, DType.float16)


def wanted(name: str, chosen: Filter) -> bool:
    """Whether a filter asks for the weight of this name: a function of the name, or patterns of which one fits."""
    if chosen is None:
        return True
    if callable(chosen):
        return bool(chosen(name))
    return any(fnmatch.fnmatchcase(name, p) for p in ([chosen] if isinstance(chosen, str) else chosen))


def packs(graph: Graph, value: Value, weight: Weight, chosen: Filter) -> bool:
    """Whether a weight is stored in Q4_0.

    Without a filter all that fit are: float matrices whose rows are multiples of 32 long, and which only linear and
    embedding read. With one, a weight that it names and that does not fit is an error.

    Raises:
        RefusedError: the filter names a weight that tract cannot read in this form, with the reason.
    """
    if not wanted(weight.name, chosen):
        return False
    reason = _unfit(graph, value, chosen is not None)
    if reason and chosen is not None:
        raise RefusedError(f"weights='q4_0' refuses {weight.name}: {reason}; leave it out of the filter")
    return not reason


def _unfit(graph: Graph, value: Value, named: bool) -> str:
    nodes = graph.uses.get(value, ())
    custom = named and bool(nodes) and not any(node.op.startswith(("aten::", "higher_order::")) for node in nodes)
    if value.type.rank < 2 or (value.type.rank > 2 and not custom) or value.type.dtype not in _FLOATS:
        return f"it is {value.type}, no matrix of floats"
    length = value.type.shape[-1]
    if not isinstance(length, int) or not length or length % Q4_0_BLOCK:
        return f"its rows are {length} long, no multiple of {Q4_0_BLOCK}"
    if not nodes or any(value is result for result in graph.results.values()):
        return "no operation of the model's graph itself reads it, or it is a result"
    for node in () if custom else nodes:
        name = READERS.get(node.op)
        others = [v for k, a in node.args.items() if k != name for v in (a if isinstance(a, tuple) else (a,))]
        if name is None or node.args.get(name) is not value or any(v is value for v in others):
            return f"{node.op} reads it at {node.origin}, and only {', '.join(READERS)} do as a weight"
    return ""


def packed_source(weight: Weight) -> Callable[[], BlockQuantised]:
    """The weight's blocks, made when the file is written."""
    return lambda: quantise_q4_0(np.asarray(weight.numpy()))


def unpacked(weight: Weight) -> np.ndarray:
    """The numbers that the weight's blocks stand for, in the weight's own element type."""
    original = np.asarray(weight.numpy())
    return dequantise_q4_0(quantise_q4_0(original)).astype(original.dtype)
