"""Inputs that a runtime can read: tensors whose elements lie in memory, each in its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ir.errors import RefusedError
from ir.graph import Value

_NO_DISPATCH = torch.Tensor.__torch_dispatch__


def refused_layout(values: Sequence[Value], tensors: Sequence[torch.Tensor]) -> RefusedError | None:
    """What to raise where a tensor has no elements in memory, or keeps them in another layout than the graph's input.

    Such are sparse, nested, fake and meta tensors, and subclasses that compute by code of their own.
    """
    for value, x in zip(values, tensors, strict=True):
        if x.layout is torch.strided and not (x.is_meta or x.is_nested) and type(x).__torch_dispatch__ is _NO_DISPATCH:
            continue
        if value.type.is_sparse and x.layout is not torch.strided:
            continue
        if x.layout is not torch.strided:
            kind = f"{x.layout} tensor".removeprefix("torch.")
        else:
            kind = "meta tensor" if x.is_meta else "nested tensor" if x.is_nested else type(x).__name__
        return RefusedError(
            f"the input {value.name} is a {kind}, the program was made for a plain tensor {value.type}; "
            "give one whose elements lie in memory, as .to_dense() makes it of a sparse one"
        )
    return None
