"""Symbolic functions, as torch.onnx's TorchScript exporter had them: `(g, *args) -> g.op(...)`, registered by op name.

Only import lines change: `from onnx_backend.legacy import register_custom_op_symbolic, register_op, parse_args`, and
`from onnx_backend.legacy import symbolic_helper`. The static `symbolic` of an autograd.Function needs no registration.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ir.dims import Expr
from ir.errors import RefusedError
from ir.graph import Node, leaves
from ir.helper import refusal_text
from ir.importer.autograd_functions import FUNCTIONS
from ir.importer.bodies import writes_of
from ir.importer.schema import TORCH_DTYPES
from ir.registry import HandlerFn
from ir.types import DType
from onnx_backend.building.values import OnnxValue
from onnx_backend.compat.legacy import symbolic_helper
from onnx_backend.compat.legacy.graph import CURRENT, GraphContext
from onnx_backend.compat.legacy.symbolic_helper import parse_args, quantized_args
from onnx_backend.compat.legacy.values import SCALAR_NUMBERS, JitScalarType, Value
from onnx_backend.registry import REGISTRY

__all__ = [
    "GraphContext", "JitScalarType", "Value", "of_function", "parse_args", "quantized_args",
    "register_custom_op_symbolic", "register_op", "symbolic_helper", "unregister_custom_op_symbolic",
]  # fmt: skip

Symbolic = Callable[..., Any]


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Symbolic, opset_version: int) -> None:
    """Lower an op through a symbolic function, from this opset on; a later registration replaces an earlier one.

    Args:
        symbolic_name: "namespace::name", aten's own included; every overload is served.
        symbolic_fn: `(g, *args)`: the schema's arguments in order, values all of them unless `parse_args` unpacks them.
        opset_version: the first opset that the function writes; with several, the newest one not above the target's.
    """
    REGISTRY.add(symbolic_name, _handler(symbolic_fn, _value), since_version=opset_version, override=True)


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Take back what was registered for this opset."""
    REGISTRY.remove(symbolic_name, layer="runtime", since_version=opset_version)


def register_op(opname: str, op: Symbolic, domain: str, version: int) -> None:
    """As register_custom_op_symbolic, by name and domain; the domain "" is aten."""
    register_custom_op_symbolic(f"{domain or 'aten'}::{opname}", op, version)


def of_function(name: str) -> HandlerFn | None:
    """The handler of an autograd.Function's op: its static `symbolic`, or None."""
    symbolic = getattr(FUNCTIONS.get(name.partition(".")[0]), "symbolic", None)
    return _handler(symbolic, _plain_value) if callable(symbolic) else None


def _handler(fn: Symbolic, convert: Callable[[Any], Any]) -> HandlerFn:
    def handler(h: Any, /, **arguments: Any) -> Any:
        values, keywords = _arguments(h, fn, {k: convert(a) for k, a in arguments.items()})
        g = GraphContext(h)
        token = CURRENT.set(g)
        try:
            made = fn(g, *values, **keywords)
        except TypeError as error:
            sizes = [str(a) for a in leaves(arguments.values()) if isinstance(a, Expr)]
            if not sizes:
                raise
            h.refuse(f"its symbolic function does not take {sizes}, known at run time only: {error}")
        finally:
            CURRENT.reset(token)
        return _results(h, g, made)

    functools.update_wrapper(handler, fn)
    handler.__signature__ = inspect.Signature([_SELF, _ALL])  # type: ignore[attr-defined]
    return handler


_SELF = inspect.Parameter("h", inspect.Parameter.POSITIONAL_ONLY)
_ALL = inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)


def _value(arg: Any) -> Value:
    """An argument as a registered symbolic function gets it: a Value, whatever it is."""
    if isinstance(arg, list):
        return Value([_value(a) for a in arg])
    return Value(SCALAR_NUMBERS[TORCH_DTYPES[arg]] if isinstance(arg, DType) else arg)


def _plain_value(arg: Any) -> Any:
    """An argument as a Function's own symbolic gets it: tensors as Values, the rest as it was passed to `apply`."""
    if isinstance(arg, list):
        return [_plain_value(a) for a in arg]
    return Value(arg) if isinstance(arg, OnnxValue) else TORCH_DTYPES[arg] if isinstance(arg, DType) else arg


def _arguments(h: Any, fn: Symbolic, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments; one that the function does not take must equal the schema's default."""
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    keyword = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    keywords = {k: v for k, v in given.items() if k in keyword}
    positional = {k: v for k, v in given.items() if k not in keyword}
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        node: Node = h.node
        for name in list(positional)[len(places) :]:
            if name not in node.defaults or node.defaults[name] != node.args[name]:
                reason = f"its symbolic function {fn.__name__} takes no argument {name}, which is {node.args[name]}"
                raise RefusedError(refusal_text(h.target.name, node, reason))
            del positional[name]
    missing = [p.name for p in places[len(positional) :] if p.default is p.empty]
    if missing:
        reason = f"its symbolic function {fn.__name__} asks for {missing}, the op has {list(given)} only"
        raise RefusedError(refusal_text(h.target.name, h.node, reason))
    return list(positional.values()), keywords


def _results(h: Any, g: GraphContext, made: Any) -> list[OnnxValue]:
    """The results in torch's own element types; an op of another domain makes what torch says."""
    flat = list(made) if isinstance(made, (tuple, list)) else [made]
    if len(flat) == 1 and isinstance(flat[0], Value) and isinstance(flat[0].content, list):
        flat = flat[0].content
    types = h.results
    if writes_of(h.node) and 2 * len(flat) == len(types):
        flat = flat * 2  # a Function returns what it writes to
    if len(flat) < len(types):
        reason = f"its symbolic function returns {len(flat)} results of {len(types)}"
        raise RefusedError(refusal_text(h.target.name, h.node, reason))
    values = []
    for x, type in zip(flat, types, strict=False):
        value = g.operand(x)
        value = value if isinstance(value, OnnxValue) else h.tensor(value, type.dtype)
        producer = value.value.producer()
        if producer is not None and producer.domain:
            value.type = type
        values.append(h.cast(value, type.dtype))
    return values
