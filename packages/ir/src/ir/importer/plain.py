"""Inputs that a runtime can read: tensors whose elements lie in memory, each in its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from ir.errors import ExportError, RefusedError
from ir.graph import Value

_NO_DISPATCH = torch.Tensor.__torch_dispatch__
_WORK: Any = 100_000  # candidates that numpy may look at, some milliseconds


def refused_layout(values: Sequence[Value], tensors: Sequence[torch.Tensor]) -> RefusedError | None:
    """What to raise where a tensor has no elements in memory, or keeps them in another layout than the graph's input.

    Such are sparse, nested, fake and meta tensors, and subclasses that compute by code of their own.
    """
    both = zip(values, tensors, strict=True)
    return next((no for v, x in both if (no := refused_tensor(v.name, v.type, v.type.is_sparse, x))), None)


def refused_tensor(name: str, wanted: object, is_sparse: bool, x: torch.Tensor) -> RefusedError | None:
    """As `refused_layout`, for one input of this name, and of this type, to say it."""
    if x.layout is torch.strided and not (x.is_meta or x.is_nested) and type(x).__torch_dispatch__ is _NO_DISPATCH:
        return None
    if is_sparse and x.layout is not torch.strided:
        return None
    if x.layout is not torch.strided:
        kind = f"{x.layout} tensor".removeprefix("torch.")
    else:
        kind = "meta tensor" if x.is_meta else "nested tensor" if x.is_nested else type(x).__name__
    return RefusedError(
        f"the input {name} is a {kind}, the program was made for a plain tensor {wanted}; "
        "give one whose elements lie in memory, as .to_dense() makes it of a sparse one"
    )


def run_in_torch(program: Callable[..., Any], values: Sequence[Value], tensors: Sequence[torch.Tensor]) -> Any:
    """A program's results; torch, its runtime, reads tensors of most layouts, and says itself which it does not.

    Raises:
        RefusedError: in place of what torch says where a tensor is of another layout than the graph's input.
    """
    try:
        return program(*tensors)
    except ExportError:
        raise
    except Exception as error:
        if refused := refused_layout(values, tensors):
            raise refused from error
        raise


def refused_sharing(values: Sequence[Value], written: Collection[int], tensors: Sequence[torch.Tensor]) -> None:
    """Refuse an input that the program writes to and that shares memory with another, or has elements that share it.

    The program was made for inputs that share none: the others would not show what is written.

    Raises:
        RefusedError: two do; they are named.
    """
    by_storage: dict[int, list[int]] = {}
    for i in written:
        x = tensors[i]
        if x.layout is torch.strided and any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True)):
            raise RefusedError(
                f"the model writes to the input {values[i].name}, of which several elements lie in one place, as "
                "expand() leaves them; give it as a copy, x.clone()"
            )
    for i, x in enumerate(tensors):
        if x.layout is torch.strided and type(x).__torch_dispatch__ is _NO_DISPATCH:
            by_storage.setdefault(x.untyped_storage().data_ptr(), []).append(i)
    for i, j in itertools.chain.from_iterable(_near(places, tensors) for places in by_storage.values()):
        for one, other in ((i, j), (j, i)):
            if one in written and _overlap(tensors[i], tensors[j]):
                raise RefusedError(
                    f"the inputs {values[one].name} and {values[other].name} share memory, and the model writes to "
                    f"{values[one].name}; give one of them as a copy, x.clone()"
                )


def _near(places: Sequence[int], tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Of tensors of one storage those pairs of which one begins before the other ends."""
    if len(places) < 2:
        return
    spans = sorted((tensors[i].storage_offset() * tensors[i].element_size(), i) for i in places if tensors[i].numel())
    for at, (begin, i) in enumerate(spans):
        x = tensors[i]
        reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        for start, j in spans[at + 1 :]:
            if start >= begin + (reach + 1) * x.element_size():
                break
            yield i, j


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether an element of one lies where one of the other does."""
    import numpy as np

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
