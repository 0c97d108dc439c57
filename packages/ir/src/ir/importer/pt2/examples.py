"""The arguments that a .pt2 file's program was captured with: tensors, numbers and containers, and nothing else.

torch.export.load falls back to an unpickler that runs what it is told to. Here is the restricted one alone, and what
it makes is compared with the inputs of the graph before anything walks through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer import caches
from ir.importer.pt2 import pickles
from ir.importer.pt2.archive import Archive
from ir.importer.pt2.expressions import Size
from ir.importer.tensor_meta import Tensors
from ir.importer.torch_api import PT2_EXAMPLES, pytree
from ir.importer.weights import has_only_truths

_DEEPEST, _MOST_PARTS = 64, 1_000_000
_MOST_BYTES = 1 << 30  # of tensors that repeat their elements; others are bounded by the file
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_WAY_OUT = "give the arguments, or pass the ExportedProgram of torch.export.load, which trusts the file"


def example_inputs(archive: Archive, model: str, spec: pytree.TreeSpec, values: Sequence[Any]) -> Any:
    """The positional and the named arguments; None for a program saved without them.

    Args:
        spec: the tree of the arguments.
        values: what the graph's own inputs are, in the order of the arguments' leaves.

    Raises:
        CaptureError: they are other objects than those, or do not fit the graph.
    """
    record = f"{PT2_EXAMPLES}{model}.pt"
    if not archive.has(record) or not archive.size(record):
        return None
    data = bytes(archive.view(record))
    try:
        with torch.serialization.safe_globals(caches.classes()):
            found = pickles.load(data)
    except CaptureError as error:
        raise CaptureError(f"its example inputs are no plain tensors: {error}; {_WAY_OUT}") from error
    if found is None:
        return None
    _check_parts(found, len(data))
    if not (isinstance(found, tuple) and [type(part) for part in found] == [tuple, dict]):
        raise CaptureError(f"its example inputs are no arguments; {_WAY_OUT}")
    leaves = pytree.tree_leaves(found)
    args, kwargs = spec.children()
    if len(found[0]) != args.num_children or {*found[1]} != {*(kwargs.context or ())}:
        raise CaptureError(f"its example inputs have other names than the arguments of its graph; {_WAY_OUT}")
    if len(leaves) != len(values) or not all(map(_fits, leaves, values)):
        raise CaptureError(f"its example inputs are not those of its graph; {_WAY_OUT}")
    if not all(has_only_truths(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)):
        raise CaptureError("its example inputs have truth values that are neither 0 nor 1")
    return found


def _check_parts(found: Any, size: int) -> None:
    """A container that holds another twice, and so on, is small in a file and endless to walk through."""
    left, parts, numbers = [(found, 0)], 0, 0
    while left:
        value, depth = left.pop()
        parts += 1
        if parts > _MOST_PARTS or depth > _DEEPEST:
            raise CaptureError(f"its example inputs are nested without end; {_WAY_OUT}")
        if isinstance(value, torch.Tensor):
            numbers += value.numel() * value.element_size()
            if numbers > max(size, _MOST_BYTES):
                raise CaptureError(f"its example inputs are larger than their record; {_WAY_OUT}")
        elif isinstance(value, dict):
            left += [(part, depth + 1) for item in value.items() for part in item]
        elif isinstance(value, (list, tuple, set, frozenset)):
            left += [(part, depth + 1) for part in value]
        elif not isinstance(value, _PLAIN):
            left += [(part, depth + 1) for part in getattr(value, "__dict__", {}).values()]


def _fits(leaf: Any, value: Any) -> bool:
    """True of what an input of the graph is in the example."""
    if not isinstance(value, Tensors):
        return not isinstance(leaf, torch.Tensor)
    if not isinstance(leaf, torch.Tensor) or leaf.dtype != value.dtype or leaf.dim() != len(value.shape):
        return False
    if leaf.layout is not value.layout or leaf.is_meta != (value.device.type == "meta"):
        return False
    known = [s.hint if isinstance(s, Size) else s for s in value.shape]
    return all(type(size) is not int or size == real for size, real in zip(known, leaf.shape, strict=True))
