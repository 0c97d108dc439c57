"""What a clean file does not hold: nodes that do nothing, and constants that are there twice.

Shapes and element types are those that `metadata=True` notes, so two sizes are equal where they are provably equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import helper, numpy_helper


def findings(model: onnx.ModelProto) -> list[str]:
    """One line for each node that could go, in the graph, its sub-graphs and the model-local functions."""
    found = list(_scope(model.graph.node, model.graph, {}, ""))
    for function in model.functions:
        found += _scope(function.node, function, {}, f"function {function.name}: ")
    names = [n.name for n in _all(model.graph.node)]
    found += [f"{n!r} names two nodes" for n in {n for n in names if names.count(n) > 1 or not n}]
    return found


def _all(nodes: Any) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _all(graph.node)


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _types(scope: Any) -> dict[str, tuple[int, tuple[Any, ...] | None]]:
    """(element type, shape) of each value that the file describes; a dimension is an int or the text of one."""
    types = {}
    infos = (
        scope.value_info if isinstance(scope, onnx.FunctionProto) else [*scope.input, *scope.output, *scope.value_info]
    )
    for info in infos:
        tensor = info.type.tensor_type
        dims = tuple(d.dim_param or d.dim_value for d in tensor.shape.dim) if tensor.HasField("shape") else None
        types[info.name] = tensor.elem_type, dims
    for initializer in getattr(scope, "initializer", ()):
        types[initializer.name] = initializer.data_type, tuple(initializer.dims)
    return types


def _scope(nodes: Any, scope: Any, outer: dict[str, Any], where: str) -> Iterator[str]:
    types = outer | _types(scope)
    made = {o: n for n in nodes for o in n.output}
    outputs = [o if isinstance(o, str) else o.name for o in scope.output]
    read = {i for n in _all(nodes) for i in n.input} | set(outputs)
    for graph in (g for n in _all(nodes) for g in _graphs(n)):
        read |= {o.name for o in graph.output}
    constants: dict[Any, str] = {}
    for initializer in getattr(scope, "initializer", ()):
        small = len(initializer.raw_data) < 1024 and not initializer.external_data
        key = (initializer.data_type, tuple(initializer.dims), numpy_helper.to_array(initializer).tobytes())
        if small and "const" in initializer.name and constants.setdefault(key, initializer.name) != initializer.name:
            yield f"{where}{initializer.name} is {constants[key]} again"
    for node in nodes:
        place = f"{where}{node.name} ({node.op_type})"
        if not any(o in read for o in node.output):
            yield f"{place} is read by nobody"
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        source, result = types.get(node.input[0]) if node.input else None, types.get(node.output[0])
        before = made.get(node.input[0]) if node.input else None
        known = source is not None and result is not None and source[1] is not None
        if node.op_type == "Identity" and (node.output[0] not in outputs or (before and node.input[0] not in outputs)):
            yield f"{place} does nothing"  # one that gives an input or a constant an output's name is needed
        if node.op_type == "Cast" and source is not None and source[0] == attributes["to"]:
            yield f"{place} keeps the type"
        shapes = ("Reshape", "Expand", "Tile", "Unsqueeze", "Squeeze")
        if node.op_type in shapes and known and source[1] == result[1] and not _is_required(node, made):
            yield f"{place} keeps the shape {source[1]}"
        if node.op_type == "Transpose" and attributes["perm"] == sorted(attributes["perm"]):
            yield f"{place} keeps the order"
        if node.op_type in ("Transpose", "Reshape", "Cast") and before is not None and before.op_type == node.op_type:
            yield from _pair(place, before, node, types)
        for graph in _graphs(node):
            yield from _scope(graph.node, graph, types, f"{place} > ")


def _is_required(node: onnx.NodeProto, made: dict[str, Any]) -> bool:
    """True of the last node of a condition (`ir::require`), which fails where that does not hold."""
    sizes = made.get(node.input[1]) if len(node.input) > 1 else None
    return sizes is not None and " needs " in sizes.name


def _pair(place: str, first: onnx.NodeProto, second: onnx.NodeProto, types: dict[str, Any]) -> Iterator[str]:
    source, result = types.get(first.input[0]), types.get(second.output[0])
    if first.op_type == "Transpose":
        yield f"{place} follows another one"
    elif source is not None and source == result and first.op_type == "Reshape":
        yield f"{place} takes back the one before it"
