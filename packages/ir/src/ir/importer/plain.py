"""Inputs that a runtime can read: tensors whose elements lie in memory, each in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ir.errors import RefusedError
from ir.graph import Value

_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_WORK: Any = 100_000  # candidates that numpy may look at, some milliseconds


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


def refused_sharing(values: Sequence[Value], written: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """Refuse an input that the program writes to and that shares memory with another.

    The program was made for inputs that share none: the others would not show what is written.

    Raises:
        RefusedError: two do; they are named.
    """
    for i in written:
        for j, (value, x) in enumerate(zip(values, tensors, strict=True)):
            if i != j and _overlap(tensors[i], x):
                raise RefusedError(
                    f"the inputs {values[i].name} and {value.name} share memory, and the model writes to "
                    f"{values[i].name}; give one of them as a copy, x.clone()"
                )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether an element of one lies where one of the other does."""
    import numpy as np

    plain = all(x.layout is torch.strided and type(x).__torch_dispatch__ is _NO_DISPATCH for x in (one, other))
    if not plain or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    try:
        return bool(np.shares_memory(np.asarray(_Bytes(one)), np.asarray(_Bytes(other)), max_work=_WORK))
    except np.exceptions.TooHardError:  # strides of many axes
        return True


class _Bytes:
    """Where the bytes of a tensor lie, on any device; they are not read."""

    def __init__(self, x: torch.Tensor) -> None:
        width = x.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (x.data_ptr(), True),
            "shape": (*x.shape, width),
            "strides": (*(s * width for s in x.stride()), 1),
        }
