"""Whether two models are the same, but for the shapes that they declare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir

LARGE = 1 << 16  # elements of a constant beyond which its shape stands for it: a weight


def same_content(a: onnx_ir.Model, b: onnx_ir.Model) -> bool:
    """Whether two models have equal nodes over values of the same names, and equal constants."""
    return list(_said(a)) == list(_said(b))


def _said(model: onnx_ir.Model) -> Iterator[Any]:
    graphs: list[onnx_ir.Graph | onnx_ir.Function] = [model.graph, *model.functions.values()]
    for name, value in model.graph.initializers.items():
        content = value.const_value
        if content is not None:
            yield name, tuple(content.shape), content.tobytes() if content.size <= LARGE else b""
    for graph in graphs:
        for node in onnx_ir.traversal.RecursiveGraphIterator(graph):
            attributes = {k: _plain(a) for k, a in node.attributes.items() if isinstance(a, onnx_ir.Attr)}
            names = [[v and v.name for v in values] for values in (node.inputs, node.outputs)]
            yield node.domain, node.op_type, node.overload, names, attributes


def _plain(attribute: onnx_ir.Attr) -> Any:
    """What it holds; the nodes of a graph are gone through by themselves."""
    value = attribute.value
    if isinstance(value, onnx_ir.TensorProtocol):
        return tuple(value.shape), value.tobytes()
    return None if isinstance(value, onnx_ir.Graph) else value
