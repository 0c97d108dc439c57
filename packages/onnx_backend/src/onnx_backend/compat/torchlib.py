"""TorchLib functions: onnxscript functions as handlers, `torch_op`, and torch.onnx's `custom_translation_table`.

A function of `onnxscript.script()` becomes a model-local function and is called; one that is only traced (`trace_only`,
or plain Python over `onnxscript.opsetNN`) is written in place. Its annotations tell inputs from attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir.dims import Expr
from ir.errors import RefusedError
from ir.graph import Node
from ir.helper import refusal_text
from ir.importer.schema import overload_of
from ir.importer.torch_api import OpOverload, OpOverloadPacket, overload_name, packet_name, schema_of
from ir.registry import Handler, HandlerFn, Registry
from ir.types import DType
from onnx_backend.building.dtypes import TO_ONNX
from onnx_backend.building.values import OnnxValue
from onnx_backend.registry import REGISTRY

DOMAIN = "pkg.onnxscript.torch_lib"
_IGNORED = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}  # what ONNX has no word for
MISSING = "TorchLib functions need onnxscript, an extra of this package: pip install 'onnx_backend[torchlib]'"


def torch_op(
    name: str | tuple[str, ...],
    *,
    registry: Any = None,
    trace_only: bool = False,
    private: bool = False,
    complex: bool = False,
) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: register an onnxscript function for ops, as onnxscript's own `torch_op`.

    Args:
        name: "aten::relu" for the default overload, "aten::add.Tensor" for another one, or a tuple of names.
        registry: where to register; this backend's registry by default, an onnxscript one is served as well.
        trace_only: trace the function in place instead of compiling it to a model-local function.
        private: compile, register nowhere.
        complex: the variant for complex operands, which come with a trailing dimension of 2.

    Raises:
        ImportError: onnxscript is not installed.
        DuplicateHandlerError: the op has such a function already.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        made = compiled(fn, trace_only)
        for each in () if private else (name,) if isinstance(name, str) else name:
            if registry is None or isinstance(registry, Registry):
                _add(registry or REGISTRY, each, made, complex)
            else:
                registry.register(made, each, complex=complex)
        return made

    return decorate


def compiled(fn: Callable[..., Any], trace_only: bool) -> Any:
    """An OnnxFunction or a TracedOnnxFunction of a Python function."""
    onnxscript = require()
    opset = onnxscript.values.Opset(DOMAIN, 1)
    return onnxscript.values.TracedOnnxFunction(opset, fn) if trace_only else onnxscript.script(opset)(fn)


def require() -> Any:
    """onnxscript.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import onnxscript
    except ImportError as error:
        raise ImportError(MISSING) from error
    return onnxscript


def table_handlers(table: Mapping[Any, Any]) -> dict[str, HandlerFn]:
    """A `custom_translation_table` of torch.onnx.export as handlers by name.

    Raises:
        TypeError: a key is no operator of torch.library.
    """
    found: dict[str, HandlerFn] = {}
    for key, fns in table.items():
        if isinstance(key, OpOverload):
            name = f"{schema_of(key).name}.{overload_name(key)}"
        elif isinstance(key, OpOverloadPacket):
            name = packet_name(key)
        else:
            raise TypeError(f"custom_translation_table: {key} is no operator such as torch.ops.aten.relu.default")
        found[name] = Functions(list(fns) if isinstance(fns, Sequence) else [fns])
    return found


def adapted(fn: Any) -> HandlerFn:
    """A function of onnxscript as a handler; any other handler as it is."""
    return Functions([fn]) if type(fn).__module__.startswith("onnxscript") else fn


def _add(registry: Registry, name: str, fn: Any, complex: bool) -> None:
    op = name if "." in name.partition("::")[2] else f"{name}.default"
    known = [e.fn for e in registry.entries.get(op, ()) if isinstance(e.fn, Functions) and e.layer != "builtin"]
    mine = known[-1] if known else Functions([])
    if mine.complex if complex else mine.real:
        registry.add(op, Functions([fn]))  # raises: it names both places
    (mine.complex if complex else mine.real).append(fn)
    if not known:
        registry.add(op, mine)


class Functions:
    """The onnxscript functions of one op: the first one whose type constraints fit the operands serves."""

    def __init__(self, real: list[Any], complex: Sequence[Any] = ()) -> None:
        self.real = real
        self.complex = list(complex)
        self.__signature__ = inspect.Signature([_SELF, _ALL])

    @property
    def takes_packed(self) -> bool:
        """True if complex operands may come with a trailing dimension of 2."""
        return bool(self.complex)

    @property
    def __code__(self) -> Any:
        """Of the first function, which stands for all where a place in source is told."""
        first = (self.real + self.complex)[0]
        fn = getattr(first, "function", getattr(first, "func", first))
        return getattr(fn, "__code__", None)

    def __call__(self, h: Any, /, **arguments: Any) -> Any:
        from onnx_backend.compat.torchlib_trace import call  # imports onnxscript

        node: Node = h.node
        functions = self.complex if node.packed else self.real
        if not functions:
            following = _next(h, self)
            if following is not None:
                return following(h, **arguments)
            return h.refuse(f"its TorchLib function is for {'real' if node.packed else 'complex'} operands only")
        refusals = []
        for fn in functions:
            fn = fn if type(fn).__module__.startswith("onnxscript") else compiled(fn, True)
            values, attributes = bind(h, fn.op_signature, arguments)
            misfit = _misfit(fn.op_signature, values)
            if not misfit or len(functions) == 1:
                return call(h, fn, values, attributes)
            refusals.append(misfit)
        return h.refuse(f"none of its TorchLib functions takes the operands: {'; '.join(refusals)}")


_SELF = inspect.Parameter("h", inspect.Parameter.POSITIONAL_ONLY)
_ALL = inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)


def _next(h: Any, after: Functions) -> HandlerFn | None:
    """The handler that would serve without these functions, if it takes every argument of the node."""
    rest = Registry("onnx", {k: [e for e in v if e.fn is not after] for k, v in h.driver.registry.entries.items()})
    found = rest.lookup(h.node.op, h.node.overload, h.opset)
    if found is None:
        return None
    handler: Handler = found
    return lambda h, **_: handler.fn(h, **h.driver._arguments(handler, h.node))


def bind(h: Any, signature: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and attributes of a function by its own parameter names, from the op's arguments.

    The schema's positional arguments go by position, its keyword-only ones by name. What the function does not take
    must have its default value.
    """
    overload = overload_of(h.node.op, h.node.origin.overload)
    keyword_only = {a.name for a in schema_of(overload).arguments if a.kwarg_only} if overload is not None else set()
    parameters = list(signature.params)
    positional = [(k, a) for k, a in arguments.items() if k not in keyword_only]
    bound = {p.name: a for p, (_, a) in zip(parameters, positional, strict=False)}
    left = dict(positional[len(parameters) :])
    for k in keyword_only & arguments.keys():
        if any(p.name == k for p in parameters):
            bound[k] = arguments[k]
        else:
            left[k] = arguments[k]
    for name in left.keys() - _IGNORED:
        if name not in h.node.defaults or h.node.defaults[name] != h.node.args[name]:
            reason = f"its TorchLib function {signature.name} takes no argument {name}, which is {h.node.args[name]}"
            raise RefusedError(refusal_text(h.target.name, h.node, reason))
    values: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for p in parameters:
        if p.is_param():
            values[p.name] = _static(bound.get(p.name))
        elif bound.get(p.name) is not None:
            attributes[p.name] = _attribute(h, p.name, bound[p.name])
    return values, attributes


def _static(arg: Any) -> Any:
    return int(TO_ONNX[arg]) if isinstance(arg, DType) else arg


def _attribute(h: Any, name: str, arg: Any) -> Any:
    for a in arg if isinstance(arg, list) else (arg,):
        if isinstance(a, Expr):
            h.refuse(f"its TorchLib function has {name} as an attribute, which is {arg}: only known at run time")
        if isinstance(a, OnnxValue):
            h.refuse(f"its TorchLib function has {name} as an attribute, which is a tensor: annotate it as an input")
    return _static(arg)


def _misfit(signature: Any, values: Mapping[str, Any]) -> str:
    """Why the operands are not of the types that the function declares; empty if they are."""
    for p in signature.params:
        if not p.is_param():
            continue
        allowed = {getattr(t, "dtype", None) for t in p.type_constraint.allowed_types}
        value = values[p.name]
        for v in value if isinstance(value, list) else (value,):
            if isinstance(v, OnnxValue) and TO_ONNX[v.type.dtype] not in allowed:
                return f"{signature.name} does not take {v.type.dtype} for {p.name}"
    return ""
