"""What the parts of the importer ask of it: nodes appended to the graph under construction, values of torch's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch.fx import Node as FxNode

from ir.graph import Node, Origin, Value
from ir.importer.schema import OpSchema
from ir.importer.symbols import Symbols
from ir.types import DType, TensorType


class NodeBuilder(Protocol):
    """The importer, for what stands beside it: functionalization and norms in training mode."""

    symbols: Symbols
    nodes: list[Node]
    memory: Any  # the `Memories` of a program that writes, else None
    line: Origin  # of the write that nodes are emitted for

    def type_of(self, fake: Any) -> TensorType:
        """The type of a fake tensor, or of a description."""

    def raw(self, arg: Any) -> Any:
        """An argument in the IR's terms, its tensors as names where memory is observed."""

    def emit(self, overload: Any, type: TensorType, name: str, given: Mapping[str, Any]) -> Value:
        """A node of one result."""

    def append(self, node: FxNode, schema: OpSchema, args: Mapping[str, Any], outputs: Sequence[Value]) -> None:
        """The node of one of torch's."""

    def again(self, node: FxNode, schema: OpSchema, args: Mapping[str, Any]) -> list[Value]:
        """The results of one of torch's nodes with other arguments."""

    def typed(self, node: FxNode, schema: OpSchema, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the casts that the op's schema asks for."""

    def required(self, op: str, args: dict[str, Any], node: FxNode) -> dict[str, Any]:
        """The arguments behind the checks that torch's kernel makes."""

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in another element type."""

    def scalar_tensor(self, number: Any, name: str) -> Value:
        """A 0-d tensor that holds a number or a size expression."""

    def part_name(self, name: str, i: int) -> str:
        """The name of one of several results."""

    def is_handed_out(self, node: FxNode) -> bool:
        """True if the node's result leaves the program."""
