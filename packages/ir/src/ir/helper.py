"""OpHelper: the lowering context that a handler gets. A backend implements its abstract verbs; the rest is common."""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, overload

import numpy as np

from ir import geometry
from ir.dims import Dim, Expr
from ir.errors import ExportError, RefusedError
from ir.graph import Body, Graph, Node, SymbolSource, Value, Weight
from ir.types import DType, TensorType, element_type


class Typed(Protocol):
    """A value of a target: a name and a type, both to read."""

    @property
    def name(self) -> Any: ...

    @property
    def type(self) -> TensorType: ...


class Lowering(Protocol):
    """What a helper asks of the driver that lowers its graph."""

    scopes: list[Graph]
    path: tuple[str, ...]
    env: dict[Value, Any]
    registry: Any

    @property
    def root_node(self) -> Node:
        """The node of the graph that is being lowered, whatever body of it is open."""

    def inline(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """Lower a body or sub-graph with these values for its inputs; its results in order."""

    def resolve(self, arg: Any) -> Any:
        """An argument as a handler sees it."""

    def symbol(self, name: str) -> tuple[Any, SymbolSource]:
        """The target's value that a symbol can be read from, and how."""

    def body(self, node: Node) -> Body | None:
        """The node's body with the target's passes applied."""

    def handler(self, node: Node) -> Any:
        """The handler that serves a node."""

    def isolated(self) -> contextlib.AbstractContextManager[None]:
        """Lower what sees nothing of the graph around it."""

    def inside(self, path: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
        """Lower what belongs to a module whose call is not kept."""


class Named(Protocol):
    """A target, of which the shared part of a helper needs the name alone."""

    @property
    def name(self) -> str:
        """As in `ir.export(..., target=)`."""


V = TypeVar("V", bound=Typed)


class Refusal(RefusedError):
    """Raised by `refuse`; the driver tries the node's body before it lets the error out."""


class OpHelper(abc.ABC, Generic[V]):
    """The target's verbs, bound to the node being lowered (`h.node`) and its results' types (`h.results`)."""

    value_class: ClassVar[type]
    target: Any  # a Named; a backend's own
    graph: Graph
    node: Node
    driver: Lowering

    def __init__(self, target: Named, graph: Graph) -> None:
        self.target = target
        self.graph = graph

    # -- what a backend implements ---------------------------------------------------------------------------------

    @overload
    def emit(self, op: str, *inputs: Any, outputs: None = None, **attributes: Any) -> V: ...
    @overload
    def emit(self, op: str, *inputs: Any, **attributes: Any) -> Any: ...
    @abc.abstractmethod
    def emit(self, op: str, *inputs: Any, **attributes: Any) -> Any:
        """Add one op of the target, checked against the target's own schema at once, and return its result(s).

        Args:
            op: its name in the target ("Add", "tract_core_cast", "dot_general"); a function of torch for eager.
            inputs: its operands: values of the target, numbers, None for one left out.
            attributes: by name, plain Python; and what else a target wants to know of the result. `outputs` is how
                many results, where they are several; a list is returned then.

        Raises:
            RefusedError: the target has no such op, or not for these element types.
            TypeError: the op has no such attribute: a mistake in the handler.
        """

    @abc.abstractmethod
    def constant(self, array: np.ndarray, name: str = "") -> V:
        """A constant of the target.

        Args:
            array: its content, of any shape, in the dtype that the constant is to have.
            name: a wish for what it is called in the artifact.
        """

    @abc.abstractmethod
    def size(self, dim: Dim) -> Any:
        """The target's own way of saying a dimension: what `emit` takes where the target wants a size.

        Args:
            dim: an int, or an expression over the graph's symbols.
        """

    @abc.abstractmethod
    def scalar(self, value: Any, dtype: DType) -> V:
        """A 0-d tensor of element type `dtype` that holds `value`: a number, or a size expression."""

    @abc.abstractmethod
    def input(self, value: Value) -> V:
        """An input of the graph, whose name and type `value` has; the driver calls this, once each."""

    @abc.abstractmethod
    def weight(self, value: Value, weight: Weight) -> V:
        """A parameter, buffer or constant of the model, by reference; the driver calls this.

        Args:
            value: what the graph calls it, with its type.
            weight: its name in the model and its content.
        """

    @abc.abstractmethod
    def call(self, body: Body, inputs: Sequence[V]) -> Sequence[V]:
        """A call of a custom op's `body`, kept by name: an ONNX function, an NNEF fragment, a nested closure.

        Args:
            body: the graph that computes the node.
            inputs: a value for each input of that graph, in order.

        Returns:
            A value for each of its outputs.
        """

    @abc.abstractmethod
    def finish(self, results: dict[str, V]) -> Any:
        """The artifact, given all `results` by name: outputs, then new contents of buffers and inputs."""

    def bind(self, result: V, value: Value) -> V:
        """Give a handler's `result` the name and type of `value` in the graph; backends override it to rename."""
        return result

    def told_shape(self, result: V, operands: Sequence[V]) -> Sequence[Dim] | None:
        """The shape of `result`, which a user's handler made of `operands`, as far as the target tells; -1: not known.

        A backend whose values do not know their shapes at once overrides it; handlers of its own are not asked.
        """
        return result.type.shape

    # -- what all share --------------------------------------------------------------------------------------------

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the node's outputs."""
        return tuple(v.type for v in self.node.outputs)

    @property
    def out(self) -> TensorType:
        """The type of the node's first output."""
        return self.node.outputs[0].type

    def cast(self, x: V, dtype: DType | None) -> V:
        """`x` in another element type, `dtype`; `x` itself if it has that type or `dtype` is None."""
        return x if dtype is None or x.type.dtype is dtype else self.convert(x, element_type(dtype))

    @abc.abstractmethod
    def convert(self, x: V, dtype: DType) -> V:
        """The target's conversion of `x` to the element type `dtype`; handlers call `cast`."""

    def const(self, value: Any, dtype: DType | V | None = None) -> V:
        """A constant from a Python number or list.

        Args:
            value: a number, or a list of numbers, nested for more axes.
            dtype: its element type, or another value whose type it takes; None is numpy's choice.

        Integers wrap around, as in torch: -1 is the largest uint8.

        Raises:
            Refusal: the element type is an integer's and the number is none.
            TypeError: `dtype` is neither.
        """
        dtype = self._element_type(dtype)
        if dtype is None:
            return self.constant(np.asarray(value))
        array = np.asarray(value)
        if dtype.is_integer and array.dtype.kind == "f" and not np.array_equal(array, np.trunc(array)):
            self.refuse(f"{value} is no {dtype}, and would be cut to one; cast the operand beside it to a float type")
        if dtype.is_integer and array.dtype.kind in "iu":
            return self.constant(array.astype(numpy_dtype(dtype)))
        with np.errstate(over="ignore"):  # infinity is what torch makes of it, too
            return self.constant(np.asarray(value, numpy_dtype(dtype)))

    def tensor(self, x: Any, dtype: DType | V | None = None) -> V:
        """The operand `x` as a tensor: a value is cast, a number becomes a constant, a size expression a 0-d tensor.

        `dtype` is the element type, or another value whose type it takes; None leaves a value as it is.
        """
        dtype = self._element_type(dtype)
        if self.is_value(x):
            return self.cast(x, dtype)
        if isinstance(x, Expr):
            return self.scalar(x, dtype or DType.int64)
        return self.const(x, dtype)

    def _element_type(self, dtype: DType | V | None) -> DType | None:
        """The element type that is meant: of a value its own."""
        if dtype is None or isinstance(dtype, DType):
            return dtype
        return dtype.type.dtype if hasattr(dtype, "type") else element_type(dtype)

    def stored(self, value: Any, dtype: DType) -> Any:
        """The number `value` as torch stores it in a tensor of `dtype`: of integers the part before the point.

        Sizes, tensors and numbers for other types are returned as they are.

        Raises:
            Refusal: the integer type does not hold the number; torch raises there where the model runs.
        """
        if not dtype.is_integer or not isinstance(value, int | float):
            return value
        limits = np.iinfo(numpy_dtype(dtype))
        wraps = isinstance(value, int) and dtype.kind == "uint"  # -1 is the largest number
        if not (-limits.max if wraps else limits.min) <= value <= limits.max:
            self.refuse(f"{value} does not fit {dtype}; torch raises there too where the model runs")
        return math.trunc(value)

    def axis(self, dim: int, x: V) -> int:
        """The axis `dim` of `x` counted from the front; refused where `x` has no such axis."""
        try:
            return geometry.axis(dim, x.type.rank)
        except IndexError as error:
            self.refuse(str(error))

    def axes(self, dims: int | Sequence[int] | None, x: V) -> list[int]:
        """The axes `dims` of `x` counted from the front; one number is one axis, None and [] mean all."""
        return geometry.axes(dims, x.type.rank)

    def is_value(self, x: Any) -> bool:
        """True if an argument `x` came as a tensor of the target, False for a plain Python argument."""
        return isinstance(x, self.value_class)

    def inline(self, graph: Graph, inputs: Sequence[V]) -> list[V]:
        """Lower a (sub-)`graph` here, `inputs` for its inputs in order, and return its results."""
        return self.driver.inline(graph, inputs)

    def static(self, dim: Any, what: str) -> int:
        """The dimension `dim` as an int; refused, as the size of `what`, if it is only known at run time."""
        if isinstance(dim, Expr):
            self.refuse(f"{what} is {dim}, which is only known at run time")
        return int(dim)

    def must_be_dense(self, argument: str) -> None:
        """Refuse a tensor whose places in memory are not known, or not those of its elements in order.

        `argument` is the schema's name of the tensor.
        """
        value = self.node.args[argument]
        if value not in self.graph.inputs and value not in self.graph.weights:
            self.refuse("a computed tensor has no memory layout in an exported graph; index or reshape instead")
        if not _is_dense(self.graph, value):
            self.refuse(f"%{value.name} is not contiguous in memory; call .contiguous() on it, or index instead")

    def refuse(self, reason: str) -> NoReturn:
        """Say that this argument, dtype or shape cannot be expressed; the node's body is tried next.

        Args:
            reason: a sentence that says what, and the way out where there is one.

        Raises:
            Refusal: always.
        """
        raise Refusal(refusal_text(self.target.name, self.node, reason))


def _is_dense(graph: Graph, value: Value) -> bool:
    """True unless the weight, or the example that the model was captured with, has strides of its own."""
    if value in graph.weights:
        tensor = graph.weights[value].tensor
        return tensor is None or tensor.is_contiguous()
    try:
        args, kwargs = graph.context.example()
        tensors = graph.structure.flatten(args, kwargs)
    except (AttributeError, ExportError):  # a program saved without examples
        return True
    return bool(tensors[graph.inputs.index(value)].is_contiguous())


def refusal_text(target: str, node: Node, reason: str) -> str:
    """One sentence with the op, the reason and the model's own source line."""
    return f"target {target!r} refuses {node.overload}: {reason}\n  at {node.origin}"


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of an element type; bfloat16 and the 8-bit floats come from ml_dtypes."""
    if dtype in (DType.bfloat16, DType.float8_e4m3fn, DType.float8_e5m2):
        import ml_dtypes  # installed with onnx; only models that use these types need it

        kind: type = getattr(ml_dtypes, dtype.name)
        return np.dtype(kind)
    return np.dtype(dtype.name)
