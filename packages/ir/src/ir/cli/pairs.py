"""Complex tensors that a file has as pairs of real numbers, beside a model or file that has them as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ir.opened import Opened, Place, Port


def paired(program: Opened, other: Opened) -> Opened:
    """The program with complex inputs and outputs where it has pairs, last of its dimensions, and the other has not."""
    inputs, outputs = _joined(program.inputs, other.inputs), _joined(program.outputs, other.outputs)
    if inputs == list(program.inputs) and outputs == list(program.outputs):
        return program
    return _Paired(program, inputs, outputs)


def _joined(ports: Sequence[Port], others: Sequence[Port]) -> list[Port]:
    beyond: list[Port | None] = [None] * max(0, len(ports) - len(others))
    return [_complex(p, o) for p, o in zip(ports, [*others, *beyond], strict=False)]


def _complex(port: Port, other: Port | None) -> Port:
    if other is None or not other.dtype.is_complex or port.dtype is not other.dtype.real:
        return port
    *sizes, last = port.shape or (None,)
    return Port(port.name, other.dtype, tuple(sizes)) if last == 2 and len(sizes) == len(other.shape) else port


class _Paired:
    """Complex numbers are taken apart before the program and joined behind it."""

    def __init__(self, program: Opened, inputs: list[Port], outputs: list[Port]) -> None:
        self.program, self.inputs, self.outputs, self.threads = program, inputs, outputs, program.threads

    @property
    def operators(self) -> Mapping[str, int]:
        """The program's own."""
        return self.program.operators

    @property
    def places(self) -> Mapping[str, Place]:
        """Where its nodes come from."""
        return self.program.places

    def __call__(self, *inputs: Any) -> list[Any]:
        given = [
            torch.view_as_real(t.resolve_conj()) if port.dtype.is_complex and not own.dtype.is_complex else t
            for t, port, own in zip(inputs, self.inputs, self.program.inputs, strict=True)
        ]
        results = zip(self.program(*given), self.outputs, self.program.outputs, strict=True)
        return [
            torch.view_as_complex(t.contiguous()) if port.dtype.is_complex and not own.dtype.is_complex else t
            for t, port, own in results
        ]
