"""`dynamic_shapes` of a cache, as people write them: said once for all layers, by name, or layer by layer."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim

from ir.errors import CaptureError
from ir.importer import caches
from ir.importer.torch_api import BUILTIN_TYPES, pytree


def spread(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: Any) -> Any:
    """`dynamic_shapes` with a list, one entry for each tensor, in the place of each cache: torch.export's own form."""
    if isinstance(shapes, Mapping):
        forward = getattr(model, "forward", model)
        names: list[str] = []
        with contextlib.suppress(TypeError, ValueError):  # no function, or a builtin without a signature
            names = list(inspect.signature(forward).parameters)
        values = dict(zip(names, args, strict=False)) | dict(kwargs)
        return {k: _spread(values[k], s) if k in values else s for k, s in shapes.items()}
    if isinstance(shapes, (list, tuple)) and len(shapes) == len(args) + len(kwargs):
        return _like(shapes, [_spread(v, s) for v, s in zip([*args, *kwargs.values()], shapes, strict=True)])
    return shapes


def _like(shapes: Any, parts: list[Any]) -> Any:
    """The parts in a list, tuple or named tuple like this one."""
    return type(shapes)(*parts) if hasattr(shapes, "_fields") else type(shapes)(parts)


def _spread(value: Any, shape: Any) -> Any:
    if caches.is_cache(value):
        return of_cache(value, shape)
    if isinstance(value, (list, tuple)) and isinstance(shape, (list, tuple)) and len(value) == len(shape):
        return _like(shape, [_spread(v, s) for v, s in zip(value, shape, strict=True)])
    if isinstance(value, Mapping) and isinstance(shape, Mapping):
        if type(value) in BUILTIN_TYPES:
            return {k: _spread(value[k], s) if k in value else s for k, s in shape.items()}
        return [_spread(v, shape.get(k)) for k, v in value.items()]  # a ModelOutput
    node = pytree.SUPPORTED_NODES.get(type(value))
    if node is not None and type(value) not in BUILTIN_TYPES and shape is not None and _is_axes(shape):
        parts = list(node.flatten_fn(value)[0])
        return pytree.tree_map(lambda t: shape if isinstance(t, torch.Tensor) else None, parts)
    return shape


def of_cache(cache: Any, shape: Any) -> list[Any]:
    """One entry for each leaf; counts of tokens are dynamic where anything is said of the cache."""
    leaves, (names, _) = caches.flatten(cache)
    given = pytree.tree_leaves(shape, is_leaf=_is_axes) if isinstance(shape, (list, tuple)) else []
    if len(given) == len(leaves):
        return given
    tensors = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    if len(given) == sum(tensors):
        rest = iter(given)
        found = [next(rest) if is_tensor else None for is_tensor in tensors]
    elif given:
        raise CaptureError(
            f"dynamic_shapes has {len(given)} entries for a cache of {sum(tensors)} tensors ({', '.join(names)})"
        )
    else:
        ranks = [leaf.dim() if t else 0 for leaf, t in zip(leaves, tensors, strict=True)]
        found = [_said(shape, name, rank) for name, rank in zip(names, ranks, strict=True)]
    counts = None if shape is None else Dim.AUTO  # which stays fixed where the model fixes it
    return [counts if said is None and not t else said for said, t in zip(found, tensors, strict=True)]


def _said(shape: Any, name: str, rank: int) -> Any:
    """What is said of a leaf by its name, else of all: the axes behind the batch are those of keys and values.

    Raises:
        CaptureError: it is neither axes nor names.
    """
    if not isinstance(shape, Mapping):
        if shape is None or not rank:
            return shape
        raise CaptureError(
            f"dynamic_shapes says {shape!r:.60} of a cache: give axes, a dict by name, or a list of them"
        )
    parts = name.split(".")
    if (key := next((k for k in shape if k in parts), None)) is not None:
        return shape[key] if parts[-1] == key else _said(shape[key], name, rank)
    kept = range(rank) if parts[-1] in ("key", "value") else range(min(rank, 1))
    return {axis: d for axis, d in shape.items() if axis in kept} or None


def _is_axes(shape: Any) -> bool:
    return shape is None or (isinstance(shape, Mapping) and all(isinstance(k, int) for k in shape))
