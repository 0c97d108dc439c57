"""A small model as calls of onnx.helper, to be run in onnxruntime: what one attaches to an issue."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import onnx_ir

from onnx_backend.format.writer import proto_of

_WIDTH = 200  # an issue shows long lines


def script(model: onnx_ir.Model, literal: Callable[[Any], str]) -> tuple[list[str], list[str]]:
    """The modules to import, and lines that define `run`; one with functions or sub-graphs is given by its bytes."""
    imports = ["onnx", "onnxruntime"]
    plain = not model.functions and all(_is_plain(a) for n in model.graph for a in n.attributes.values())
    lines = [*_spelled(model, literal)] if plain else [*_as_bytes(model)]
    if not plain:
        imports += ["base64", "zlib"]
    return imports, [
        *lines,
        "def run(*tensors):",
        "    session = onnxruntime.InferenceSession(model_proto.SerializeToString())",
        "    names = [i.name for i in session.get_inputs()]",
        "    return session.run(None, {n: t.numpy() for n, t in zip(names, tensors, strict=True)})",
    ]


def _is_plain(attribute: Any) -> bool:
    kinds = onnx_ir.AttributeType
    return attribute.type in (
        kinds.INT,
        kinds.INTS,
        kinds.FLOAT,
        kinds.FLOATS,
        kinds.STRING,
        kinds.STRINGS,
        kinds.TENSOR,
    )


def _as_bytes(model: onnx_ir.Model) -> Iterator[str]:
    packed = base64.b64encode(zlib.compress(proto_of(model).SerializeToString(), 9)).decode()
    yield f'model_proto = onnx.load_model_from_string(zlib.decompress(base64.b64decode("{packed}")))'


def _spelled(model: onnx_ir.Model, literal: Callable[[Any], str]) -> Iterator[str]:
    graph = model.graph
    yield "h, T, arr = onnx.helper, onnx.TensorProto, onnx.numpy_helper.from_array"
    yield from _list("nodes", [_node(n, literal) for n in graph])
    constants = [
        f"arr({literal(v.const_value.numpy())}, {n!r})" for n, v in graph.initializers.items() if v.const_value
    ]
    yield from _list("constants", constants)
    inputs = ", ".join(map(_info, graph.inputs))
    outputs = ", ".join(map(_info, graph.outputs))
    yield f'graph = h.make_graph(nodes, "g", [{inputs}], [{outputs}], constants)'
    imports = ", ".join(f"h.make_opsetid({d!r}, {v})" for d, v in graph.opset_imports.items())
    yield f"model_proto = h.make_model(graph, opset_imports=[{imports}], ir_version={model.ir_version})"


def _node(node: onnx_ir.Node, literal: Callable[[Any], str]) -> str:
    inputs = [v.name if v is not None else "" for v in node.inputs]
    parts = [repr(node.op_type), repr(inputs), repr([v.name for v in node.outputs])]
    parts += [f"{k}={_attribute(a, literal)}" for k, a in node.attributes.items()]
    return f"h.make_node({', '.join([*parts, *([f'domain={node.domain!r}'] if node.domain else [])])})"


def _attribute(attribute: Any, literal: Callable[[Any], str]) -> str:
    if attribute.type == onnx_ir.AttributeType.TENSOR:
        return f"arr({literal(attribute.value.numpy())})"
    value = attribute.value
    return repr(list(value)) if isinstance(value, (list, tuple)) else repr(value)


def _info(value: onnx_ir.Value) -> str:
    shape = None if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]
    kind = value.dtype.name if value.dtype is not None else "FLOAT"
    return f"h.make_tensor_value_info({value.name!r}, T.{kind}, {shape})"


def _list(name: str, items: list[str]) -> Iterator[str]:
    if len(line := f"{name} = [{', '.join(items)}]") <= _WIDTH:
        yield line
        return
    yield f"{name} = ["
    yield from _packed(items)
    yield "]"


def _packed(items: list[str]) -> list[str]:
    """As many on a line as fit."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= _WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"    {item},")
    return lines
