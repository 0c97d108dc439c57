"""A small program as Python over torch alone: what one attaches to an issue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import CompiledProgram
from eager_backend.building.onednn import SPELLED
from ir.errors import ExportError
from ir.importer.torch_api import OpOverload
from ir.importer.weights import TorchWeight

_PLACES = {
    "torch": torch, "torch.nn.functional": torch.nn.functional, "torch.Tensor": torch.Tensor,
    "torch.special": torch.special, "torch.linalg": torch.linalg, "torch.fft": torch.fft,
}  # fmt: skip


def script(program: CompiledProgram, literal: Callable[[Any], str]) -> tuple[list[str], list[str]]:
    """The modules to import (none), and lines that define `run`.

    Raises:
        ExportError: it calls something that is not torch's, such as a kernel of a custom op.
    """
    source = "\n".join(line.partition("  # ")[0] for line in program.source.splitlines() if _computes(line))
    read = set(re.findall(r"\b[A-Za-z_]\w*\b", source))
    known = {n: v for n, v in program.constants.globals.items() if n in read and n not in ("run", "__builtins__")}
    return [], [*(f"{n} = {_expression(v, literal)}" for n, v in known.items()), *source.splitlines()]


def _computes(line: str) -> bool:
    return bool(line.strip()) and "refuse_" not in line and not line.strip().startswith("del ")


def _expression(value: Any, literal: Callable[[Any], str]) -> str:
    if isinstance(value, Tensor):
        if value.is_mkldnn:  # packed for oneDNN, whose kernels take it as it was, too
            value = value.to_dense()
        if value.layout is not torch.strided:
            raise ExportError("a constant that is not strided has no short form")
        return f"torch.from_numpy({literal(TorchWeight('', value).numpy())})"
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return f'torch.device("{value}")' if isinstance(value, torch.device) else str(value)
    if isinstance(value, (int, float, tuple, slice)) or value is Ellipsis:
        return f'float("{value}")' if isinstance(value, float) and value - value != 0 else repr(value)
    found = next(_named(value), None)
    if found is None:
        raise ExportError(f"{value!r:.80} is no function of torch's own")
    return found


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, BuiltinFunctionType) and value in SPELLED:
        yield SPELLED[value]
    if isinstance(value, OpOverload):
        yield f"torch.ops.{value}"
    name = getattr(value, "__name__", "")
    for place, holder in _PLACES.items():
        if name and getattr(holder, name, None) == value:
            yield f"{place}.{name}"
