"""OnnxValue: what a handler passes around."""

from __future__ import annotations

import numpy as np
import onnx_ir

from ir.types import TensorType
from onnx_backend.building.dtypes import TO_ONNX


class OnnxValue:
    """A tensor of the model under construction; `array` is its content where it is a constant."""

    __slots__ = ("array", "before", "type", "value")

    def __init__(self, value: onnx_ir.Value, type: TensorType, array: np.ndarray | None = None) -> None:
        self.value = value
        self.type = type
        self.array = array
        self.before: OnnxValue | None = None  # what this is a reshape, transpose or cast of

    @property
    def name(self) -> str:
        return self.value.name or ""

    def made_by(self, op: str) -> onnx_ir.Node | None:
        """The node that makes it, if that is of this op."""
        producer = self.value.producer()
        return producer if producer is not None and producer.op_type == op else None

    def describe(self) -> None:
        """Write the type into the onnx_ir value: element type, sizes, dynamic dimensions by name or expression."""
        self.value.type = onnx_ir.TensorType(TO_ONNX[self.type.dtype])
        if self.type.shape is not None:
            self.value.shape = onnx_ir.Shape([s if isinstance(s, int) else str(s) for s in self.type.shape])

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"
