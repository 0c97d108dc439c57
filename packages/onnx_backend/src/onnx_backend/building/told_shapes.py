"""What ONNX's own shape inference tells of a result of a user's handler, where the rules of `shapes` do not know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir

from ir.dims import Dim
from onnx_backend.building.dtypes import TO_ONNX
from onnx_backend.building.values import OnnxValue

_MOST_NODES = 64  # between the operands and the result, all of which are copied
_MOST_NUMBERS = 1024  # of a constant that may be a shape


class _Part:
    """The nodes that lead from the operands to a result, as a model of its own."""

    def __init__(self, operands: Sequence[OnnxValue]) -> None:
        self._operands = {id(v.value): v for v in operands}
        self._met: set[int] = set()
        self.nodes: list[onnx_ir.Node] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, value: onnx_ir.Value) -> bool:
        """Add what makes a value, its operands first; False where that is too much to copy."""
        if id(value) in self._met:
            return True
        self._met.add(id(value))
        node = None if id(value) in self._operands else value.producer()
        if node is None:
            self._given(value)
        elif not any(node is n for n in self.nodes):
            if len(self.nodes) == _MOST_NODES or not all(self.add(v) for v in node.inputs if v is not None):
                return False
            self.nodes.append(node)
        return True

    def _given(self, value: onnx_ir.Value) -> None:
        held, operand = value.const_value, self._operands.get(id(value))
        if operand is not None and operand.type.shape is not None:
            kind, dims = int(TO_ONNX[operand.type.dtype]), _dims(operand.type.shape)
            self.inputs.append(onnx.helper.make_tensor_value_info(value.name or "", kind, dims))
        elif held is not None and held.size <= _MOST_NUMBERS:
            tensor = onnx.numpy_helper.from_array(held.numpy(), value.name)
            self.constants.append(tensor)
        elif value.dtype is not None:
            sizes = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
            self.inputs.append(onnx.helper.make_tensor_value_info(value.name or "", int(value.dtype), sizes))


def told_shape(result: OnnxValue, operands: Sequence[OnnxValue], domains: Mapping[str, int]) -> Sequence[Dim] | None:
    """The shape of a result that a handler made of the operands; -1: a size is not known; None: nothing is."""
    part = _Part(operands)
    if result.type.shape is not None or not part.add(result.value):
        return result.type.shape
    names = {str(d): d for v in operands for d in v.type.shape or ()}
    output = onnx.ValueInfoProto(name=result.name)
    graph = onnx.helper.make_graph(
        [onnx_ir.serde.serialize_node(n) for n in part.nodes], "part", part.inputs, [output], part.constants
    )
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
    try:
        inferred = onnx.shape_inference.infer_shapes(
            onnx.helper.make_model(graph, opset_imports=opsets), data_prop=True, strict_mode=False
        )
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None  # of a node that is wrong in itself: the check of the whole model has its error
    type = inferred.graph.output[0].type.tensor_type
    if not type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else names.get(d.dim_param, -1) for d in type.shape.dim]


def _dims(shape: Sequence[Any]) -> list[int | str]:
    return [d if isinstance(d, int) else str(d) for d in shape]
