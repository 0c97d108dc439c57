"""From collected nodes to an onnx_ir.Model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx.helper
import onnx_ir

from onnx_backend.building import devices

_IR_VERSIONS = {row[2]: row[1] for row in onnx.helper.VERSION_TABLE}
_FUNCTIONS, _METADATA = 8, 10  # the first IR versions with model-local functions, and with metadata of nodes


def make_model(h: Any, outputs: Sequence[Any]) -> onnx_ir.Model:
    """The model of everything that the outputs of an `OnnxHelper` need."""
    values = [o.value for o in outputs]
    nodes = live(h.scopes[0].nodes, values)
    used = {id(v) for n in nodes for v in reads(n)} | {id(v) for v in values}
    functions = called(nodes, {(f.made.domain, f.made.name): f.made for f in h.functions.values()})
    imports = domains([*nodes, *(n for f in functions for n in f)])
    graph = onnx_ir.Graph(
        [i.value for i in h.inputs],
        values,
        nodes=nodes,
        initializers=[v for v in h.initializers.values() if id(v) in used],
        opset_imports={d: h.domains[d] for d in imports} | {"": h.opset},
        name=h.graph.name,
    )
    version = max(_METADATA if h.target.metadata else _FUNCTIONS, _IR_VERSIONS[h.opset])
    model = onnx_ir.Model(graph, ir_version=version, producer_name="ir", functions=functions)
    if h.target.devices is not None:
        model.ir_version = max(version, devices.IR_VERSION)
        devices.annotate(model, h.target.devices)
    return model


def live(nodes: Sequence[onnx_ir.Node], outputs: Iterable[onnx_ir.Value]) -> list[onnx_ir.Node]:
    """The nodes whose results are read, in order."""
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
    for graph in subgraphs(node):
        yield from graph.outputs
        for inner in graph:
            yield from reads(inner)


def subgraphs(node: onnx_ir.Node) -> Iterator[onnx_ir.Graph]:
    """The graphs among a node's attributes."""
    for attribute in node.attributes.values():
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def nested(nodes: Iterable[onnx_ir.Node]) -> Iterator[onnx_ir.Node]:
    """The nodes and those of their sub-graphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from nested(graph)


def domains(nodes: Iterable[onnx_ir.Node]) -> set[str]:
    """The domains of the nodes' ops."""
    return {n.domain for n in nested(nodes)}


def called(nodes: Iterable[onnx_ir.Node], functions: dict[tuple[str, str], onnx_ir.Function]) -> list[onnx_ir.Function]:
    """The functions that the nodes call, directly or not, the called ones before their callers."""
    found: dict[tuple[str, str], onnx_ir.Function] = {}

    def visit(nodes: Iterable[onnx_ir.Node]) -> None:
        for node in nested(nodes):
            key = node.domain, node.op_type
            if key in functions and key not in found:
                visit(functions[key])
                found[key] = functions[key]

    visit(nodes)
    return list(found.values())


def fingerprint(
    inputs: Sequence[onnx_ir.Value], outputs: Sequence[onnx_ir.Value], nodes: Sequence[onnx_ir.Node]
) -> Any:
    """What the nodes compute, apart from names: equal for functions that may stand for each other."""
    places = {id(v): i for i, v in enumerate([*inputs, *(v for n in nodes for v in n.outputs)])}

    def attribute(a: onnx_ir.Attr) -> Any:
        if a.type == onnx_ir.AttributeType.TENSOR:
            tensor = a.as_tensor()
            return tensor.dtype, tuple(tensor.shape.dims), tensor.tobytes()
        if a.type == onnx_ir.AttributeType.GRAPH:
            return id(a)  # sub-graphs are not compared: such a function stands for itself
        return tuple(a.value) if isinstance(a.value, (list, tuple)) else a.value

    return len(inputs), tuple(places[id(v)] for v in outputs), tuple(
        (n.domain, n.op_type, tuple(None if v is None else places[id(v)] for v in n.inputs), len(n.outputs),
         tuple((k, attribute(a)) for k, a in sorted(n.attributes.items())))
        for n in nodes
    )  # fmt: skip
