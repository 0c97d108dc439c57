"""The `g` of a symbolic function: `g.op` writes through the helper's `emit`, so the standard's schemas are checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import onnx_ir
import torch

from ir.dims import Expr
from ir.importer.schema import DTYPES, TORCH_DTYPES
from ir.importer.weights import TorchWeight
from ir.types import DType
from onnx_backend.building.dtypes import FROM_ONNX
from onnx_backend.building.schema import op_schema
from onnx_backend.building.values import OnnxValue
from onnx_backend.compat.legacy.values import Value

CURRENT: ContextVar[GraphContext | None] = ContextVar("graph", default=None)
_ATTRIBUTE = re.compile(r"(.+)_(?:(ty)|([ifstgz]))$")
_ELEMENT_TYPES = ("to", "dtype", "output_datatype")  # attributes that hold one
_PLAIN = {"i": int, "f": float, "s": str}
_ATTRS: dict[str, Any] = {"i": onnx_ir.AttrInt64s, "f": onnx_ir.AttrFloat32s, "s": onnx_ir.AttrStrings}


class GraphContext:
    """What a symbolic function gets as its first argument."""

    def __init__(self, helper: Any) -> None:
        self.helper = helper
        self.graph = self.block = self

    @property
    def opset(self) -> int:
        """The opset being written."""
        return int(self.helper.opset)

    @property
    def original_node(self) -> Any:
        """The node of our graph that is being lowered."""
        return self.helper.node

    def op(self, opname: str, *raw_args: Any, outputs: int = 1, **kwargs: Any) -> Any:
        """Add one node; its result, or a tuple of them where `outputs` is greater than one.

        Args:
            opname: "Add", or "domain::Name" for an op of another domain, which is imported.
            raw_args: values, numbers, torch tensors, None for an optional input left out.
            outputs: the number of results.
            kwargs: attributes with their type behind the name: `axis_i=1`, `scales_f=[1.0]`, `mode_s="max"`,
                `value_t=tensor`; None leaves one out.

        Raises:
            RefusedError: the opset has no such op, or it does not take this element type.
            ValueError: an attribute's name does not say its type.
        """
        domain, _, name = opname.rpartition("::")
        if domain == "prim":
            return self._prim(name, raw_args)
        if domain == "aten":
            self.helper.refuse(f"its symbolic function writes {opname}, which no runtime of ONNX knows")
        attributes = {k: v for k, v in kwargs.items() if v is not None}
        standard = domain in ("", "onnx")
        if standard and name == "Constant":
            return Value(self.tensor(next(iter(attributes.values()))))
        operands = [self.operand(a) for a in raw_args]
        named = dict(_attribute(k, v, plain=standard) for k, v in attributes.items())
        if standard:
            operands = self._agreeing(name, operands)
        made = self.helper.emit(name if standard else f"{domain}::{name}", *operands, outputs=outputs, **named)
        return tuple(Value(m) for m in made) if outputs > 1 else Value(made)

    def constant(self, value: Any) -> Value:
        """A constant from a torch tensor, a number or a list of numbers."""
        return Value(self.tensor(value))

    insertConstant = constant

    def onnxscript_op(self, onnx_fn: Any, *raw_args: Any, outputs: int = 1, **kwargs: Any) -> Any:
        """A call of a compiled onnxscript function, which is added to the model; attributes as for `op`."""
        from onnx_backend.compat.torchlib_trace import scripted  # imports onnxscript

        attributes = dict(_attribute(k, v, plain=True) for k, v in kwargs.items() if v is not None)
        made = scripted(self.helper, onnx_fn, [self.operand(a) for a in raw_args], attributes)
        return tuple(map(Value, made)) if outputs > 1 else Value(made[0])

    def at(self, operator: str, *args: Any, **kwargs: Any) -> Any:
        """An ATen node: refused, no runtime of ONNX knows those."""
        self.helper.refuse(f"its symbolic function writes the ATen node {operator!r}, which no runtime of ONNX knows")

    aten_op = at

    # -- operands --------------------------------------------------------------------------------------------------

    def operand(self, x: Any) -> Any:
        """An argument as `emit` takes it: a value of the model, a number, None."""
        x = x.content if isinstance(x, Value) else x
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        if isinstance(x, Expr):
            return self.helper.scalar(x, DType.int64)
        if isinstance(x, (list, tuple)):
            items = [i.content if isinstance(i, Value) else i for i in x]
            if any(isinstance(i, OnnxValue) for i in items):
                self.helper.refuse("a symbolic function passes a list of tensors as one operand; pass them one by one")
            return items
        return x

    def tensor(self, x: Any) -> OnnxValue:
        """A constant of the model."""
        x = x if isinstance(x, torch.Tensor) else torch.tensor(x)
        made: OnnxValue = self.helper.constant(TorchWeight("", x.detach().cpu()).numpy())
        return made

    def _agreeing(self, name: str, operands: list[Any]) -> list[Any]:
        """Operands of one type variable in one element type, by torch's promotion, as TorchScript's exporter has it."""
        schema = op_schema(name, self.opset)
        if schema is None:
            return operands
        groups: dict[str, list[int]] = {}
        for i, x in enumerate(operands):
            formal = schema.input(i)
            if isinstance(x, OnnxValue) and formal is not None and len(formal.allowed) > 1:
                groups.setdefault(formal.variable, []).append(i)
        for places in groups.values():
            dtype = promoted([operands[i] for i in places])
            for i in places:
                operands[i] = self.helper.cast(operands[i], dtype)
        return operands

    def _prim(self, name: str, args: Sequence[Any]) -> Any:
        if name in ("ListConstruct", "TupleConstruct"):
            return Value([a if isinstance(a, Value) else Value(a) for a in args])
        if name in ("ListUnpack", "TupleUnpack"):
            return tuple(args[0].content)
        if name == "Constant":
            return Value(None)
        return self.helper.refuse(f"its symbolic function writes prim::{name}, which has no ONNX operator")


def promoted(values: Sequence[OnnxValue]) -> DType:
    """The element type that torch would compute in; constants without dimensions count as Python numbers."""
    numbers = [v for v in values if v.array is not None and v.array.ndim == 0]
    strong = [TORCH_DTYPES[v.type.dtype] for v in values if v not in numbers]
    if not strong:
        strong, numbers = [TORCH_DTYPES[v.type.dtype] for v in numbers], []
    dtype = strong[0]
    for other in strong[1:]:
        dtype = torch.promote_types(dtype, other)
    for number in numbers:
        dtype = torch.result_type(torch.empty(1, dtype=dtype), number.array.item())  # type: ignore[union-attr]
    return DTYPES[dtype]


def _attribute(key: str, value: Any, *, plain: bool) -> tuple[str, Any]:
    """Name and value of `axis_i=1`; of an op of another domain the type is the one that the name says."""
    match = _ATTRIBUTE.match(key)
    if match is None:
        raise ValueError(f"the attribute {key!r} does not say its type: write {key}_i, _f, _s or _t")
    name, kind = match[1], match[2] or match[3]
    value = value.constant() if isinstance(value, Value) else value
    if kind in ("t", "z"):
        return name, TorchWeight("", torch.as_tensor(value).detach().cpu()).numpy()
    if kind not in _PLAIN:
        return name, value
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        items = [_PLAIN[kind](v) for v in value]
        return name, items if plain and items else _ATTRS[kind](name, items)
    if plain and name in _ELEMENT_TYPES:
        return name, FROM_ONNX[onnx_ir.DataType(int(value))]
    return name, _PLAIN[kind](value)
