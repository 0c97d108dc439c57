"""A graph as text, the way people like to read it: one node a line, types behind values, the source line last."""

from __future__ import annotations

import os
from typing import Any

from ir.graph import Graph, Node, Value
from ir.types import DType


def arg_text(arg: Any) -> str:
    """One argument of a node."""
    match arg:
        case Value():
            return f"%{arg.name}"
        case Graph():
            return f"@{arg.name}"
        case DType():
            return arg.short
        case tuple():
            return f"[{', '.join(map(arg_text, arg))}]"
        case str():
            return repr(arg)
        case _:
            return str(arg)


def _source(node: Node) -> str:
    origin = node.origin
    parts = []
    if origin.file:
        parts.append(f"{os.path.basename(origin.file)}:{origin.line}")
    if origin.module:
        parts.append(origin.module)
    return f"  # {' '.join(parts)}" if parts else ""


def node_text(node: Node, *, source: bool = True) -> str:
    """One node as a line without its indentation."""
    outputs = ", ".join(f"%{v.name}: {v.type}" for v in node.outputs)
    arguments = ", ".join(f"{k}={arg_text(a)}" for k, a in node.args.items())
    return f"{outputs} = {node.op}({arguments})" + (_source(node) if source else "")


def to_text(graph: Graph, *, source: bool = True, indent: str = "") -> str:
    """The whole graph; sub-graphs follow the node that holds them, indented.

    Args:
        graph: what to write.
        source: False leaves out the model's files and lines, so that the text depends on the model alone.
        indent: what each line begins with.

    Examples:
        >>> print(ir.to_text(graph, source=False).splitlines()[0])
        graph(%x: f32[B, 3]) {
    """
    inputs = ", ".join(f"%{v.name}: {v.type}" for v in graph.inputs)
    lines = [f"{indent}{graph.name}({inputs}) {{"]
    if graph.symbols:
        ends = {
            s: ("-inf" if r.min is None else r.min, "inf" if r.max is None else r.max) for s, r in graph.symbols.items()
        }
        ranges = [f"{s} in [{low}, {high}]" for s, (low, high) in ends.items()]
        lines.append(f"{indent}  symbols {', '.join(ranges)}")
    for value, weight in graph.weights.items():
        lines.append(f"{indent}  weight %{value.name}: {value.type} = {weight.name!r}")
    for node in graph.nodes:
        lines.append(f"{indent}  {node_text(node, source=source)}")
        lines += [to_text(g, source=source, indent=indent + "    ") for g in node.graphs]
    results = [f"{name}=%{v.name}" for name, v in zip(graph.output_names, graph.outputs, strict=True)]
    lines.append(f"{indent}  return {', '.join(results)}")
    lines += [f"{indent}  update {name} = %{v.name}" for name, v in graph.updates.items()]
    return "\n".join([*lines, f"{indent}}}"])
