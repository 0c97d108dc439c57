"""Handlers written for torch-to-nnef's extras: the same decorator, signature and helper, over our own.

    from nnef_backend.compat.extras import register          # was: from torch_to_nnef.op.extras import register

    @register("my_op")                                # serves t2n_extra::my_op
    def my_op(g, node, name_to_tensor, null_ref, *, torch_graph, inference_target, op_helper, **kwargs):
        x = op_helper.get_or_add_tensor_variable_in_nnef(node.inputs[0])
        op_helper.add_single_output_op_from_nnef_tensors(
            node=node, nnef_op_type="relu", inputs=x, force_full_output_tensor_name=node.outputs[0].export_name
        )
        return []

A module of such handlers is loaded as every plugin is: `ir.export(..., plugins=["my_pkg.handlers"])`, IR_PLUGINS, entry
points of the group "ir.handlers" with `discover_plugins=True`; the first one that names an op keeps it. Sizes may be
symbols here: `resolve_attr_axis_size` gives the expression, which is written into the document.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ir.dims import Dim
from ir.errors import RefusedError
from ir.helper import numpy_dtype, refusal_text
from ir.types import DType, TensorType
from nnef_backend.building.library import add_fragments
from nnef_backend.building.operators import OPERATORS, SHORT
from nnef_backend.building.steps import NnefValue
from nnef_backend.helper import NnefHelper
from nnef_backend.registry import register as register_handler
from nnef_backend.target import Khronos as KhronosNNEF
from nnef_backend.target import Tract as TractNNEF

NAMESPACE = "t2n_extra"
ExtraHandler = Callable[..., "Sequence[Union[str, Fragment]]"]


@dataclass(frozen=True)
class Fragment:
    """A fragment that a handler returns beside those that `nnef_backend.add_fragments` knows: its .nnef text."""

    text: str


@dataclass(frozen=True, eq=False)
class TensorNode:
    """A tensor among a node's inputs or outputs."""

    name: str
    type: TensorType
    data: None = None

    @property
    def export_name(self) -> str:
        return self.name

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes; one that is not known before run time is an expression."""
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> Any:
        """torch's element type."""
        from ir.importer.schema import TORCH_DTYPES

        return TORCH_DTYPES[self.type.dtype]


@dataclass(frozen=True)
class ConstantNode:
    """An argument that is no tensor."""

    name: str
    data: Any


def _absent(node: TensorNode | ConstantNode) -> bool:
    return isinstance(node, ConstantNode) and node.data is None


@dataclass(frozen=True)
class OpNode:
    """The node: its op, and its arguments in the order of the op's schema."""

    kind: str
    inputs: tuple[TensorNode | ConstantNode, ...]
    outputs: tuple[TensorNode, ...]


@dataclass(eq=False)
class Tensor:
    """A tensor of the document."""

    value: NnefValue

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.value.type.shape

    @property
    def rank(self) -> int:
        return len(self.value.type.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.value.type.dtype)


def register(op_name: str, *, override: bool = False) -> Callable[[ExtraHandler], ExtraHandler]:
    """Decorator: this function is the handler of `t2n_extra::<op_name>`; a name with "::" is taken as it is.

    Raises:
        DuplicateHandlerError: the op has a handler from the same place and `override` is False.
    """
    op = op_name if "::" in op_name else f"{NAMESPACE}::{op_name}"

    def decorate(fn: ExtraHandler) -> ExtraHandler:
        def handler(h: NnefHelper, /, **arguments: Any) -> Any:
            return _run(fn, h, arguments)

        handler.__signature__ = inspect.signature(handler)  # type: ignore[attr-defined]
        handler.__wrapped__ = fn  # type: ignore[attr-defined]  # the place that errors name
        register_handler(op, override=override)(handler)
        return fn

    return decorate


def _run(fn: ExtraHandler, h: NnefHelper, arguments: Mapping[str, Any]) -> list[NnefValue]:
    names: dict[str, Tensor] = {}
    inputs = tuple(n for name, arg in arguments.items() for n in _inputs(h, name, arg, names))
    outputs = tuple(TensorNode(v.name, v.type) for v in h.node.outputs)
    node = OpNode(h.node.op, inputs, outputs)
    null = Tensor(h.constant(np.zeros((), np.float32)))
    helper = OpHelper(h, node, names, null)
    returned = fn(
        g=h, node=node, name_to_tensor=names, null_ref=null, torch_graph=h.graph, inference_target=h.target,
        op_helper=helper,
    )  # fmt: skip
    for fragment in returned or ():
        for name in add_fragments(fragment.text) if isinstance(fragment, Fragment) else [fragment]:
            h.fragment(name)
    unknown = sorted(helper.called - h.fragments.keys())
    if unknown:
        raise _mistake(
            h, f"its handler writes {unknown[0]}, which is no operation, and returns no fragment of that name"
        )
    missing = [o.name for o in outputs if o.name not in names]
    if missing:
        raise _mistake(h, f"its handler made no tensor for the output {missing[0]}")
    return [names[o.name].value for o in outputs]


def _mistake(h: NnefHelper, reason: str) -> RefusedError:
    """For what a handler got wrong no decomposition makes up."""
    return RefusedError(refusal_text(h.target.name, h.node, reason))


def _inputs(h: NnefHelper, name: str, arg: Any, names: dict[str, Tensor]) -> list[TensorNode | ConstantNode]:
    """An argument as nodes; a list of tensors is as many inputs."""
    if isinstance(arg, (list, tuple)) and any(isinstance(a, NnefValue) for a in arg):
        return [n for a in arg for n in _inputs(h, name, a, names)]
    if not isinstance(arg, NnefValue):
        return [ConstantNode(name, arg)]
    names.setdefault(arg.name, Tensor(arg))
    return [TensorNode(arg.name, arg.type)]


class OpHelper:
    """What a handler emits with."""

    def __init__(self, h: NnefHelper, node: OpNode, name_to_tensor: dict[str, Tensor], null_ref: Tensor) -> None:
        self.g = h
        self.node = node
        self.name_to_tensor = name_to_tensor
        self.null_ref = null_ref
        self.inference_target = h.target
        self.called: set[str] = set()  # fragments that were written before they were known

    def get_or_add_tensor_variable_in_nnef(self, node: TensorNode | ConstantNode, **kwargs: Any) -> Tensor:
        """The document's tensor for an input; a number becomes a constant."""
        if isinstance(node, TensorNode):
            return self.name_to_tensor[node.name]
        dtype = DType.bool if isinstance(node.data, bool) else DType.int64 if isinstance(node.data, int) else None
        array = np.asarray(node.data, numpy_dtype(dtype or DType.float32))
        return Tensor(self.g.constant(array, node.name))

    def data_nodes_to_nnef_tensors(self, data_nodes: Sequence[TensorNode | ConstantNode]) -> list[Tensor]:
        """The same for each; an argument that is None becomes `null_ref`."""
        return [self.null_ref if _absent(n) else self.get_or_add_tensor_variable_in_nnef(n) for n in data_nodes]

    def unary_output_op_without_attr(self, nnef_op_type: str, node: OpNode) -> Tensor:
        """One operation over all inputs, as the node's output."""
        return self.add_single_output_op_from_nnef_tensors(
            node, nnef_op_type, self.data_nodes_to_nnef_tensors(node.inputs)
        )

    def add_single_output_op_from_nnef_tensors(
        self,
        node: OpNode,
        nnef_op_type: str,
        inputs: Tensor | Sequence[Tensor],
        attrs: Mapping[str, Any] | None = None,
        output_tensor_name_suffix: str = "",
        force_full_output_tensor_name: str = "",
        **kwargs: Any,
    ) -> Tensor:
        """An operation bound to the node's first output, or under a name of its own with a suffix or another name."""
        first = node.outputs[0]
        name = force_full_output_tensor_name or f"{first.export_name}{output_tensor_name_suffix}"
        (made,) = self._emit(nnef_op_type, inputs, attrs, [first.type])
        self.name_to_tensor[name] = made
        return made

    def add_multi_output_op_from_nnef_tensors(
        self,
        node: OpNode,
        nnef_op_type: str,
        inputs: Tensor | Sequence[Tensor],
        attrs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Tensor]:
        """An operation with a result for each of the node's outputs, bound to them in order."""
        made = self._emit(nnef_op_type, inputs, attrs, [o.type for o in node.outputs])
        self.name_to_tensor.update(zip((o.export_name for o in node.outputs), made, strict=True))
        return made

    def add_intermediate_op(
        self, src: Tensor, op_type: str, attrs: Mapping[str, Any] | None, new_shape: Sequence[Dim], suffix: str
    ) -> Tensor:
        """A step on the way: its result has the element type of `src` and the shape `new_shape`."""
        (made,) = self._emit(op_type, src, attrs, [src.value.type.with_shape(tuple(new_shape))])
        self.name_to_tensor[f"{src.name}_{suffix}"] = made
        return made

    def emit_dtype_cast(
        self, node: OpNode, tensor: Tensor, to_tract_dtype: str, full_name: str | None = None
    ) -> Tensor:
        """The tensor in another element type, by tract's short name for it."""
        made = Tensor(self.g.convert(tensor.value, SHORT[to_tract_dtype]))
        self.name_to_tensor[full_name or f"{tensor.name}_as_{to_tract_dtype}"] = made
        return made

    def _emit(
        self, op: str, inputs: Tensor | Sequence[Tensor], attrs: Mapping[str, Any] | None, types: Sequence[TensorType]
    ) -> list[Tensor]:
        given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        values = [t.value for t in given]
        attributes = {k: SHORT.get(v, v) if k == "to" and isinstance(v, str) else v for k, v in (attrs or {}).items()}
        h = self.g
        if op in OPERATORS:
            joined = [values] if op in ("concat", "stack") else values
            # with an underscore, for none of them is a parameter of emit itself
            apart: dict[str, Any] = {f"{k}_": v for k, v in attributes.items()}
            made = h.emit(op, *joined, outputs=len(types), **apart)
            results = list(made) if isinstance(made, list) else [made]
        else:
            self.called.add(op)
            results = [NnefValue(h.unique(f"{h.node.name}_{op}"), t) for t in types]
            written = {k: h.written(v) for k, v in attributes.items()}
            results = h.scope.add_once(h.step(results, op, tuple(h.written(v) for v in values), written))
        for result, type in zip(results, types, strict=True):
            if result.type.shape is None:
                result.type = result.type.with_shape(type.shape)
        return [Tensor(r) for r in results]


def resolve_attr_axis_size(op_helper: OpHelper, input_node: TensorNode | Tensor, axis: int) -> Dim:
    """The size of an axis for an attribute: a number, or the expression over the inputs' symbols."""
    return input_node.shape[axis]


__all__ = [
    "ConstantNode", "Fragment", "KhronosNNEF", "OpHelper", "OpNode", "Tensor", "TensorNode", "TractNNEF", "register",
    "resolve_attr_axis_size",
]  # fmt: skip
