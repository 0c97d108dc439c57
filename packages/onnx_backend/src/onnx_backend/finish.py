"""From collected nodes to an onnx_ir.Model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import onnx.helper
import onnx_ir

if TYPE_CHECKING:
    from onnx_backend.helper import OnnxHelper, OnnxValue

_IR_VERSIONS = {row[2]: row[1] for row in onnx.helper.VERSION_TABLE}


def make_model(h: OnnxHelper, outputs: Sequence[OnnxValue]) -> onnx_ir.Model:
    """The model of everything that the outputs need."""
    values = [o.value for o in outputs]
    nodes = live(h.scopes[0].nodes, values)
    used = {id(v) for n in nodes for v in reads(n)} | {id(v) for v in values}
    graph = onnx_ir.Graph(
        [i.value for i in h.inputs],
        values,
        nodes=nodes,
        initializers=[v for v in h.initializers.values() if id(v) in used],
        opset_imports=h.domains,
        name=h.graph.name,
    )
    version = max(8, _IR_VERSIONS[h.opset])  # 8 is the first with model-local functions
    return onnx_ir.Model(graph, ir_version=version, producer_name="ir", functions=list(h.functions.values()))


def live(nodes: Sequence[onnx_ir.Node], outputs: Iterable[onnx_ir.Value]) -> list[onnx_ir.Node]:
    """The nodes whose results are read, in order; sub-graphs are thinned out too."""
    needed = {id(v) for v in outputs}
    kept = []
    for node in reversed(nodes):
        if any(id(v) in needed for v in node.outputs):
            kept.append(node)
            needed.update(id(v) for v in reads(node))
        else:
            for i in range(len(node.inputs)):
                node.replace_input_with(i, None)
    return kept[::-1]


def reads(node: onnx_ir.Node) -> Iterator[onnx_ir.Value]:
    """The values that a node reads, those read inside its sub-graphs included."""
    yield from (v for v in node.inputs if v is not None)
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            graph = attribute.as_graph()
            yield from graph.outputs
            for inner in graph:
                yield from reads(inner)
