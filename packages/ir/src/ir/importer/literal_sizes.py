"""Sizes that a view is given as numbers, where torch.export has worked them out of the others.

`t//(t//8)` is 8 wherever torch takes `view(-1, 8)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ir import geometry
from ir.importer.tensor_meta import Tensors, graphs_of
from ir.importer.torch_api import OpOverload, schema_of
from ir.ops import RESHAPES


def literal_sizes(module: torch.nn.Module) -> Iterator[tuple[Any, int]]:
    """Each such size, as a node's type has it, and its number."""
    for graph in graphs_of(module):
        for node in graph.nodes:
            if isinstance(node.target, OpOverload) and isinstance(node.meta.get("val"), Tensors):
                schema = schema_of(node.target)
                given = {a.name: v for a, v in zip(schema.arguments, node.args, strict=False)} | node.kwargs
                for number, size in _asked(schema.name, given, node.meta["val"].shape):
                    if type(number) is int and number >= 0 and not isinstance(size, int):
                        yield size, number


def _asked(op: str, given: Mapping[str, Any], made: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """What an op is asked for, and what it gives."""
    if op in RESHAPES:
        asked = given.get("size", given.get("shape", given.get("sizes", ())))
        first = geometry.axis(given["dim"], len(made) - len(asked) + 1) if "sizes" in given else 0
        yield from zip(asked, made[first:], strict=False)
    elif op == "aten::pixel_unshuffle" and type(channels := given["self"].meta["val"].shape[-3]) is int:
        yield channels * given["downscale_factor"] ** 2, made[-3]
