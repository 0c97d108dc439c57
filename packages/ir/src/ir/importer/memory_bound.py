"""What an operator would take in memory, before it runs: a file of a few bytes may ask for all that there is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ir.files import size_text
from ir.importer.schema import op_schema
from ir.importer.torch_api import OpOverload, disable_current_modes, pytree, schema_of
from ir.importer.without_storage import UncheckedError, is_composite

_PLENTY = 4 << 30  # bytes
_TIMES = 64  # the bytes that an operator reads: models make little of much, or much that they go on with


def check_memory(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises UncheckedError for an operator whose results, or operands, are large beyond the memory that it reads.

    Views take no memory. One element that is expanded to all sizes takes none either, but what reads it has no end.
    """
    if not isinstance(overload, OpOverload) or is_composite(overload) or op_schema(overload).views:
        return
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    if any(t.layout is not torch.strided or t.is_quantized or t.is_meta for t in tensors):
        return
    keys = tuple((tuple(t.shape), t.dtype) if isinstance(t, Tensor) else (type(t), t) for t in leaves)
    try:
        made = _made(overload, keys, spec)
    except TypeError:  # an argument that is no key
        return
    read = sum(t.untyped_storage().nbytes() for t in tensors)
    if made > _PLENTY and made > _TIMES * read:
        raise UncheckedError(f"{schema_of(overload).name} is not run: it would take {size_text(made)}")
    given = sum(t.numel() * t.element_size() for t in tensors)
    if given > _PLENTY and given > _TIMES * read:
        raise UncheckedError(f"{schema_of(overload).name} is not run: it would read {size_text(given)}")


@cache
def _takes_device(overload: OpOverload) -> bool:
    return any(a.name == "device" and a.kwarg_only for a in schema_of(overload).arguments)


@cache
def _made(overload: OpOverload, keys: tuple[Any, ...], spec: Any) -> int:
    """The bytes of the results, 0 where nobody knows them without the numbers."""
    given = [torch.empty(k[0], dtype=k[1], device="meta") if isinstance(k[0], tuple) else k[1] for k in keys]
    args, kwargs = pytree.tree_unflatten(given, spec)
    if _takes_device(overload):
        kwargs["device"] = torch.device("meta")
    elif not any(t.is_meta for t in given if isinstance(t, Tensor)):
        return 0  # it would make them
    try:
        with disable_current_modes():
            results = overload(*args, **kwargs)
    except Exception:  # of any kind: torch says so again where it runs
        return 0
    return sum(t.numel() * t.element_size() for t in pytree.tree_leaves(results) if isinstance(t, Tensor))
