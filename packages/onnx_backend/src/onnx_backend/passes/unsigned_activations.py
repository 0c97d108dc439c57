"""int8 between quantising and dequantising -> uint8, zero point and limits moved up by 128.

onnxruntime's integer kernels for x86 take uint8 activations; its own rewrite of int8 gives up where a quantised tensor
is read twice, as in every residual network. `clamp(round(x / s) + z)` with `z` and both limits 128 higher is the same
step, so that dequantising gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir.graph import Graph, Node, Value, map_arg
from ir.passes.graph_editor import GraphEditor
from ir.types import DType

_SHIFT = 128
_QUANTIZE, _DEQUANTIZE = "quantized_decomposed::quantize_per_tensor", "quantized_decomposed::dequantize_per_tensor"
_CHOOSE = "quantized_decomposed::choose_qparams"


def unsigned_activations(graph: Graph) -> Graph:
    """The graph with uint8 wherever only quantising and dequantising see the int8."""
    edit, values = GraphEditor(graph), dict[Value, Value]()
    for node in graph.nodes:
        group = _group(graph, node)
        if group:
            old = node.outputs[0]
            values[old] = Value(old.name, old.type.with_dtype(DType.uint8))
            for n in group:
                edit.replace(n, _moved(n, values))
    return edit.graph()


def _group(graph: Graph, node: Node) -> tuple[Node, ...]:
    """A quantising node, all that read it, and what chooses its parameters; nothing where others see the numbers."""
    if node.op != _QUANTIZE or node.args["dtype"] is not DType.int8 or node.outputs[0] in graph.results.values():
        return ()
    readers = graph.uses.get(node.outputs[0], ())
    zero = node.args["zero_point"]
    if not all(r.op == _DEQUANTIZE and r.args["zero_point"] == zero for r in readers):
        return ()
    if not isinstance(zero, Value):
        return (node, *readers)
    chooser = graph.producer.get(zero)
    if chooser is None or chooser.op != _CHOOSE or {node, *readers} != set(graph.uses[zero]):
        return ()
    return () if zero in graph.results.values() else (node, *readers, chooser)


def _moved(node: Node, values: Mapping[Value, Value]) -> Node:
    args: dict[str, Any] = {k: map_arg(a, lambda x: values.get(x, x)) for k, a in node.args.items()}
    numbers = [k for k in ("zero_point", "quant_min", "quant_max") if isinstance(args.get(k), int)]
    args |= {k: args[k] + _SHIFT for k in numbers} | {"dtype": DType.uint8}
    outputs = tuple(values.get(v, v) for v in node.outputs)
    return Node(node.op, args, outputs, node.origin, node.returns, node.defaults)
