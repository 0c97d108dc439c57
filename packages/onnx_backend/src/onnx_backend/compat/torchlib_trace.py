"""onnxscript functions written through the helper: in place by an evaluator, or as a model-local function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference
import onnx_ir
import onnxscript
from onnxscript.evaluator import Evaluator, default_as

from ir.dims import Expr
from ir.types import DType, TensorType
from onnx_backend.building.dtypes import FROM_ONNX, TO_ONNX
from onnx_backend.building.schema import op_schema
from onnx_backend.building.values import OnnxValue

_SEMANTICS_CHANGED = {"GroupNormalization"}  # same name, attributes and inputs, another meaning from opset 21


def call(h: Any, fn: Any, values: Mapping[str, Any], attributes: Mapping[str, Any]) -> list[OnnxValue]:
    """The results of a TorchLib function for a node, in torch's own element types."""
    if isinstance(fn, onnxscript.OnnxFunction) and not fn.traceable:
        made = scripted(h, fn, list(values.values()), attributes)
    else:
        python = fn.function if isinstance(fn, onnxscript.OnnxFunction) else fn.func
        recorder = Recorder(h)
        wrapped = {k: recorder.operand(p, values) for p in fn.op_signature.params for k in (p.name,) if k in values}
        given = {k: v for k, v in wrapped.items() if v is not None or not _has_default(fn.op_signature, k)}
        with default_as(recorder):
            result = python(**given, **attributes)
        made = [recorder.plain(r) for r in (result if isinstance(result, (tuple, list)) else (result,))]
    results = []
    for value, type in zip(made, h.results, strict=False):
        value = value if isinstance(value, OnnxValue) else h.tensor(value, type.dtype)
        results.append(h.cast(value, type.dtype))
    if len(results) < len(h.results):
        h.refuse(f"its TorchLib function {fn.name} returns {len(results)} results of {len(h.results)}")
    return results


def _has_default(signature: Any, name: str) -> bool:
    parameter = next(p for p in signature.params if p.name == name)
    return not parameter.required


class TracedValue(onnx_ir.Value):
    """What a traced function holds: shape, dtype and rank can be asked for, Python's operators write ops."""

    def __init__(self, held: OnnxValue, opset: Any) -> None:
        shape = None if held.type.shape is None else [d if isinstance(d, int) else str(d) for d in held.type.shape]
        super().__init__(
            name=held.name,
            shape=None if shape is None else onnx_ir.Shape(shape),
            type=onnx_ir.TensorType(TO_ONNX[held.type.dtype]),
            const_value=None if held.array is None else onnx_ir.tensor(held.array, dtype=TO_ONNX[held.type.dtype]),
        )
        self.held = held
        self._opset = opset

    @property
    def rank(self) -> int | None:
        """The number of dimensions, None if unknown."""
        return None if self.shape is None else len(self.shape)

    def __mod__(self, other: Any) -> Any:
        floats = self.held.type.dtype.is_float
        return self._opset.Mod(self, other, fmod=1) if floats else self._opset.Mod(self, other)

    def __ne__(self, other: object) -> Any:
        return self._opset.Not(self._opset.Equal(self, other))

    __hash__ = onnx_ir.Value.__hash__

    def __neg__(self) -> Any:
        return self._opset.Neg(self)


def _operator(op: str, swapped: bool = False) -> Any:
    def method(self: TracedValue, other: Any) -> Any:
        return getattr(self._opset, op)(*((other, self) if swapped else (self, other)))

    return method


for _name, _op in {"add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "pow": "Pow", "matmul": "MatMul",
                   "and": "And", "or": "Or"}.items():  # fmt: skip
    setattr(TracedValue, f"__{_name}__", _operator(_op))
    setattr(TracedValue, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _op in {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}.items():
    setattr(TracedValue, f"__{_name}__", _operator(_op))


class Recorder(Evaluator):
    """onnxscript's evaluator that emits instead of computing."""

    def __init__(self, helper: Any) -> None:
        self.h = helper
        versions = [v for v in range(1, helper.opset + 1) if hasattr(onnxscript, f"opset{v}")]
        self.opset = getattr(onnxscript, f"opset{max(versions)}")

    def traced(self, value: OnnxValue) -> TracedValue:
        """A value of the model for a traced function."""
        return TracedValue(value, self.opset)

    def operand(self, parameter: Any, values: Mapping[str, Any]) -> Any:
        """An argument for an input of a traced function: a number becomes a constant, a list of sizes a tensor."""
        x = values[parameter.name]
        if isinstance(x, OnnxValue):
            return self.traced(x)
        if isinstance(x, Expr):
            return self.traced(self.h.scalar(x, DType.int64))
        if isinstance(x, list):
            if any(isinstance(e, Expr) for e in x):
                return self.traced(self.h.sizes(x))
            return [self.traced(e) if isinstance(e, OnnxValue) else e for e in x]
        return x

    def plain(self, x: Any) -> Any:
        """An operand or attribute of an op as `emit` takes it."""
        if isinstance(x, TracedValue):
            return x.held
        if isinstance(x, onnx.TensorProto):
            return self.h.constant(onnx.numpy_helper.to_array(x))
        if isinstance(x, (np.ndarray, onnx_ir.TensorProtocol)):
            return self.h.constant(x if isinstance(x, np.ndarray) else x.numpy())
        if isinstance(x, (list, tuple)):
            items = [self.plain(i) for i in x]
            if any(isinstance(i, OnnxValue) for i in items):
                return self.h.concat([self.h.reshape(self.h.tensor(i, DType.int64), (1,)) for i in items], 0)
            return items
        return x

    # -- onnxscript's interface ------------------------------------------------------------------------------------

    def eval_op(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One ONNX op."""
        if op.domain == "" and op.name == "Constant":
            return self.traced(_constant(self.h, *next((k, v) for k, v in kwargs.items() if v is not None)))
        parameters = list(op.op_signature.params) if op.op_signature is not None else []
        names = [p.name for p in parameters if p.is_param()]
        inputs = [self.plain(a) for a in args]
        for name in names[len(inputs) :]:
            inputs.append(self.plain(kwargs[name]) if name in kwargs else None)
        attributes = {k: self._attribute(k, v) for k, v in kwargs.items() if k not in names and k != "_outputs"}
        count = kwargs.get("_outputs") or _count(self.h, op, args, attributes)
        made = self.h.emit(
            f"{op.domain}::{op.name}" if op.domain else op.name, *inputs, outputs=count, **attributes
        )  # fmt: skip
        return [self.traced(m) for m in made] if count > 1 else self.traced(made)

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call of another function: traced, or a model-local one."""
        if function.traceable:
            return function.function(*args, **kwargs)
        names = [p.name for p in function.op_signature.params]
        given = dict(zip(names, args, strict=False)) | dict(kwargs)
        values = [self.plain(given.get(p.name)) for p in function.op_signature.params if p.is_param()]
        attributes = {
            p.name: given[p.name] for p in function.op_signature.params if not p.is_param() and p.name in given
        }
        made = [self.traced(m) for m in scripted(self.h, function, values, attributes)]
        return made if len(made) > 1 else made[0]

    def _attribute(self, name: str, x: Any) -> Any:
        if isinstance(x, onnx_ir.DataType) or (name in ("to", "dtype") and isinstance(x, int)):
            return FROM_ONNX[onnx_ir.DataType(x)]
        if isinstance(x, (onnx_ir.TensorProtocol, onnx.TensorProto)):
            return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x.numpy()
        if callable(x) or isinstance(x, onnxscript._internal.values.OnnxClosure):
            self.h.refuse(f"its TorchLib function is traced and passes the sub-graph {name}; compile it with script()")
        return x


def _count(h: Any, op: Any, args: Sequence[Any], attributes: Mapping[str, Any]) -> int:
    """How many results a traced function expects of an op: all that its schema names."""
    schema = op_schema(op.name, h.opset) if not op.domain else None
    if schema is None:
        return len(op.op_schema.outputs) if op.op_schema is not None else 1
    if op.name == "Split":
        sizes = args[1] if len(args) > 1 else None
        known = sizes.held.array if isinstance(sizes, TracedValue) else sizes
        count = attributes.get("num_outputs", None if known is None else len(known))
        return int(count) if count else h.refuse("its TorchLib function splits into a number of pieces that is unknown")
    if op.name == "BatchNormalization" and not attributes.get("training_mode"):
        return 1
    return max(1, len(schema.outputs))


def _dtype_of_number(number: Any, parameter: Any, operands: Sequence[Any]) -> DType:
    """The element type of a number: one that the parameter allows, the first tensor's if it can hold the number."""
    tensors = [x.type.dtype for x in operands if isinstance(x, OnnxValue)]
    wanted = [DType.bool] if isinstance(number, bool) else [DType.float32] if isinstance(number, float) else []
    wanted += [d for d in tensors[:1] if d.is_float or (d.is_integer and not isinstance(number, float))][::-1]
    wanted = [*wanted[::-1], DType.int64, DType.float32]
    allowed = {getattr(t, "dtype", None) for t in parameter.type_constraint.allowed_types}
    return next((d for d in wanted if TO_ONNX[d] in allowed), wanted[0])


def _constant(h: Any, kind: str, value: Any) -> OnnxValue:
    """op.Constant(value=tensor), value_int=1, value_floats=[...]."""
    if kind == "value":
        made = h.constant(onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value.numpy())
    elif kind.startswith("value_string"):
        return h.refuse("its TorchLib function makes a string constant")  # type: ignore[no-any-return]
    else:
        made = h.constant(np.asarray(value, np.float32 if kind.startswith("value_float") else np.int64))
    return made  # type: ignore[no-any-return]


# -- model-local functions ---------------------------------------------------------------------------------------------


def scripted(h: Any, fn: Any, values: Sequence[Any], attributes: Mapping[str, Any]) -> list[OnnxValue]:
    """A call of a compiled function, which is added to the model together with those that it calls."""
    proto = fn.to_function_proto()
    _import(h, fn)
    operands = []
    inputs = [p for p in fn.op_signature.params if p.is_param()]
    for parameter, x in zip(inputs, values, strict=True):
        if isinstance(x, list):
            if any(isinstance(e, OnnxValue) for e in x):
                h.refuse(f"its TorchLib function {fn.name} takes a list of tensors; use trace_only=True")
            x = h.sizes(x) if any(isinstance(e, Expr) for e in x) else h.const(x)
        elif isinstance(x, (bool, int, float)):
            x = h.const(x, _dtype_of_number(x, parameter, values))
        elif isinstance(x, Expr):
            x = h.scalar(x, DType.int64)
        operands.append(x)
    while operands and operands[-1] is None:
        operands.pop()
    defaults = {p.name: p.default for p in fn.op_signature.params if not p.is_param() and not p.required}
    types = {p.name: p.type for p in fn.op_signature.params if not p.is_param()}
    made = [onnx_ir.convenience.convert_attribute(k, v, types[k]) for k, v in attributes.items()]
    made += [d for k, d in defaults.items() if k not in attributes and d is not None]
    inferred = _types(h, proto, operands, made)
    count = len(proto.output)
    results = h.emit(
        f"{proto.domain}::{proto.name}", *operands, outputs=count, **{a.name: a for a in made}
    )  # fmt: skip
    results = results if count > 1 else [results]
    for result, type in zip(results, inferred, strict=True):
        result.type = type
    return list(results)


def _import(h: Any, fn: Any) -> None:
    """Add the function, and what it calls, to the model; in the opset being written."""
    h.domains.setdefault(fn.function_ir.domain, fn.opset.version)
    key = (fn.function_ir.domain, fn.name)
    held = h.functions.get(key)
    if held is not None:
        if held.made.metadata_props["source"] != fn.source:
            h.refuse(f"two TorchLib functions are called {key[0]}::{key[1]}; give one of them another name or opset")
        return
    function = onnx_ir.from_proto(fn.to_function_proto())
    function.metadata_props["source"] = fn.source
    own = function.opset_imports.get("", h.opset)
    for node in function.graph.all_nodes():
        if node.domain == "" and own != h.opset and not _carries_over(node, own, h.opset):
            h.refuse(f"its TorchLib function {fn.name} is written for opset {own}, and {node.op_type} has changed "
                     f"between that and {h.opset}; use opset={own}")  # fmt: skip
    if "" in function.opset_imports:
        function.opset_imports[""] = h.opset
    for domain, version in function.opset_imports.items():
        h.domains.setdefault(domain, version)
    h.add_function(key, function)
    for inner in fn.function_ir.get_called_functions().values():
        _import(h, inner)


def _carries_over(node: onnx_ir.Node, old: int, new: int) -> bool:
    """True if a node of one opset means the same in another: attributes and inputs are there, defaults are the same."""
    try:
        before, after = (onnx.defs.get_schema(node.op_type, v) for v in (old, new))
    except onnx.defs.SchemaError:
        return False
    if before.since_version == after.since_version:
        return True
    if node.op_type in _SEMANTICS_CHANGED or after.deprecated or set(node.attributes) - set(after.attributes):
        return False
    same = all(
        name in after.attributes and after.attributes[name].default_value == a.default_value
        for name, a in before.attributes.items()
        if name not in node.attributes
    )
    return same and after.min_input <= len(node.inputs) <= after.max_input


def _types(h: Any, proto: onnx.FunctionProto, operands: Sequence[Any], attributes: Sequence[onnx_ir.Attr]) -> Any:
    """The results' types by ONNX's own inference, or torch's where it says nothing."""
    inputs = []
    for x in operands:
        if isinstance(x, OnnxValue):
            sizes = None if x.type.shape is None else [s if isinstance(s, int) else None for s in x.type.shape]
            inputs.append(onnx.helper.make_tensor_type_proto(int(TO_ONNX[x.type.dtype]), sizes))
        else:
            inputs.append(onnx.TypeProto())
    try:
        found = onnx.shape_inference.infer_function_output_types(
            proto, inputs, [onnx_ir.to_proto(a) for a in attributes]
        )
    except Exception:  # inference that gives up says nothing about the function
        found = [onnx.TypeProto()] * len(proto.output)
    types = []
    for i, t in enumerate(found):
        dtype = FROM_ONNX.get(onnx_ir.DataType(t.tensor_type.elem_type))
        static = [d.dim_value if d.HasField("dim_value") else None for d in t.tensor_type.shape.dim]
        shape: Any = tuple(static) if t.tensor_type.HasField("shape") and None not in static else None
        fallback = h.results[i] if i < len(h.results) else h.out
        types.append(TensorType(dtype or fallback.dtype, shape))
    return types
