"""The inputs of a call of an opened file, held to what the file declares before its runtime has them.

Runtimes say what does not fit in words of their own, or compute: two inputs whose first sizes have one name are added
in onnxruntime where one of them is 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ir.errors import ExportError, RefusedError
from ir.importer.plain import refused_tensor
from ir.opened import Port, extent


class Binding:
    """A file's inputs; a call gives the tensors for its runtime."""

    def __init__(self, ports: Sequence[Port], any_layout: bool = False) -> None:
        self._ports = tuple(ports)
        self._any_layout = any_layout  # the runtime is torch
        self._accepted: list[Any] = []  # the types of the last inputs that were looked at
        sized = [(p, place, axis, d) for place, p in enumerate(ports) for axis, d in enumerate(p.shape)]
        texts = [(p, place, axis, d) for p, place, axis, d in sized if isinstance(d, str)]
        self._named = [t for t in texts if t[-1].isidentifier()]
        self._computed = [t for t in texts if not t[-1].isidentifier()]

    def __call__(self, given: Sequence[Any]) -> list[torch.Tensor]:
        """One tensor for each input, in order; an array of numpy is one.

        Raises:
            RefusedError: there are more or fewer, or one has another element type, rank or sizes than the file says, or
                has no elements that can be read; or sizes of one name differ.
        """
        strange = [type(g).__name__ for g in given if not isinstance(g, (torch.Tensor, np.ndarray))]
        if strange or len(given) != len(self._ports):
            what = f"a {strange[0]}" if strange else str(len(given))
            raise RefusedError(f"{self._form}; {what} {'is' if strange or len(given) == 1 else 'are'} given")
        tensors = [g if isinstance(g, torch.Tensor) else _tensor(p, g) for p, g in zip(self._ports, given, strict=True)]
        types = [(t.dtype, t.shape, t.layout, t.is_meta, type(t)) for t in tensors]
        if types != self._accepted:
            self._check(tensors)
            self._accepted = types
        return tensors

    @property
    def _form(self) -> str:
        """How the file is called."""
        inputs = ", ".join(f"{p.name} {p}" for p in self._ports) or "none"
        return f"the file takes torch tensors or numpy arrays, one for each input in order ({inputs})"

    def _check(self, tensors: Sequence[torch.Tensor]) -> None:
        for port, tensor in zip(self._ports, tensors, strict=True):
            fixed = [isinstance(d, int) and d != s for d, s in zip(port.shape, tensor.shape, strict=False)]
            if tensor.dtype is not getattr(torch, port.dtype.name) or tensor.dim() != len(port.shape) or any(fixed):
                raise _misfit(port, tensor)
            refused = None if self._any_layout else refused_tensor(port.name, port, port.is_sparse, tensor)
            if refused is not None:
                raise refused
        first: dict[str, tuple[int, Port]] = {}
        for port, place, axis, name in self._named:
            size = tensors[place].shape[axis]
            known, other = first.setdefault(name, (size, port))
            if size != known:
                raise RefusedError(
                    f"{name} is {known} in {other.name} and {size} in {port.name}, and the file takes one size for both"
                )
        sizes = {name: size for name, (size, _) in first.items()}
        for port, place, axis, text in self._computed:
            if _extent(text, sizes) not in (None, tensors[place].shape[axis]):
                raise _misfit(port, tensors[place], sizes)


def _extent(text: str, sizes: Mapping[str, int]) -> int | None:
    """The size; None where the names of the inputs do not tell it, or the file has words of its own."""
    with contextlib.suppress(ExportError, ZeroDivisionError):
        return extent(text, sizes)
    return None


def _misfit(port: Port, tensor: torch.Tensor, sizes: Mapping[str, int] | None = None) -> RefusedError:
    what = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    where = ", ".join(f"{n} is {sizes[n]}" for n in sorted(port.symbols) if n in sizes) if sizes else ""
    return RefusedError(f"{port.name} is {what}, and the file takes {port}{where and f', where {where}'}")


def _tensor(port: Port, array: np.ndarray) -> torch.Tensor:
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except TypeError as error:
        raise RefusedError(f"{port.name} is an array of {array.dtype}, and the file takes {port}") from error
