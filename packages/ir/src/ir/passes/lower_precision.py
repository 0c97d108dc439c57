"""float32 becomes a narrower floating type, except at nodes that are to stay; inputs and results keep theirs."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ir.graph import Graph, Node, Value, Weight, map_arg
from ir.types import DType

_DIVIDING = ("aten::div", "aten::divide", "aten::true_divide")


def lower_precision(graph: Graph, dtype: DType, keep: Collection[str] = ()) -> Graph:
    """The graph with float32 operands cast where nodes are to compute in `dtype`.

    What torch makes of an op with narrower operands decides its results. Nodes that torch does not compute so, that
    have float64 or complex operands, or that hold graphs stay as they are. A literal beyond the range of the type, such
    as a mask's -3e38, becomes its largest number.

    Args:
        keep: names of nodes that stay in float32, paths or patterns of modules (`encoder.*`), or ops (`layer_norm`).
    """
    return _Pass(graph, dtype, keep).run()


def is_kept(node: Node, keep: Collection[str]) -> bool:
    """Whether a list for `lower_precision` names the node: itself, its module or one around it, or its op."""
    module = node.origin.module
    names = {node.name, node.op, node.op.rpartition("::")[2], node.overload, node.overload.rpartition("::")[2], module}
    for wanted in keep:
        if module.startswith(f"{wanted}.") or any(n and fnmatch.fnmatchcase(n, wanted) for n in names):
            return True
    return False


def within(node: Node, arg: Any, limit: float) -> Any:
    """A number among the arguments of a node that is to compute in a type whose largest is `limit`.

    By another number than the model's nothing is divided: torch takes that one in float32, and so do targets.
    """
    divides = node.op in _DIVIDING and arg is node.args.get("other")
    if isinstance(arg, float) and limit < abs(arg) < float("inf") and not divides:
        return math.copysign(limit, arg)
    return arg


class _Pass:
    """One rewrite; `versions` are a value in float32 and in the narrower type, as far as they exist."""

    def __init__(self, graph: Graph, dtype: DType, keep: Collection[str]) -> None:
        self.graph, self.dtype, self.keep = graph, dtype, keep
        self.versions: dict[tuple[Value, DType], Value] = {}
        self.now: dict[Value, Value] = {}  # a value of the graph -> what stands for it
        self.nodes: list[Node] = []
        self.weights: dict[Value, Weight] = dict(graph.weights)

    def run(self) -> Graph:
        """The graph anew."""
        for node in self.graph.nodes:
            results = self._results(node)
            if results is None:
                self._add(node, DType.float32, node.outputs)
            else:
                made = tuple(self._typed(v, t) for v, t in zip(node.outputs, results, strict=True))
                self._add(node, self.dtype, made)
        outputs = tuple(self._version(v, v.type.dtype) for v in self.graph.outputs)
        updates = {n: self._version(v, v.type.dtype) for n, v in self.graph.updates.items()}
        read = {v for n in self.nodes for v in n.inputs} | {*outputs, *updates.values()}
        weights = {v: w for v, w in self.weights.items() if v in read}
        return self.graph.replace(nodes=tuple(self.nodes), outputs=outputs, updates=updates, weights=weights)

    def _results(self, node: Node) -> tuple[DType, ...] | None:
        """The types of the results where the node computes in the narrower type, else None."""
        types = {v.type.dtype for v in node.inputs}
        floats = {t for t in types if t.is_float or t.is_complex}
        if node.graphs or DType.float32 not in types or not floats <= {DType.float32, self.dtype}:
            return None
        if node.op.startswith("ir::") or is_kept(node, self.keep) or not node.outputs:
            return None
        results: tuple[DType, ...] | None = self.graph.context.result_types(node, {DType.float32: self.dtype})
        return results

    def _add(self, node: Node, dtype: DType, outputs: tuple[Value, ...]) -> None:
        narrow = dtype is not DType.float32

        def operand(arg: Any) -> Any:
            if isinstance(arg, Value):
                return self._version(arg, dtype) if arg.type.dtype is DType.float32 else self.now.get(arg, arg)
            return within(node, arg, self.graph.context.largest(self.dtype)) if narrow else arg

        args = {k: map_arg(a, operand) for k, a in node.args.items()}
        self.nodes.append(replace(node, args=args, outputs=outputs))
        self.now.update(zip(node.outputs, outputs, strict=True))

    def _typed(self, value: Value, dtype: DType) -> Value:
        return value if value.type.dtype is dtype else Value(value.name, value.type.with_dtype(dtype))

    def _version(self, value: Value, dtype: DType) -> Value:
        """What stands for a value in this element type, by a cast where there is none yet; weights are cast once."""
        current = self.now.get(value, value)
        if current.type.dtype is dtype or not current.type.dtype.is_float:
            return current
        key = value, dtype
        if key not in self.versions:
            made = Value(f"{value.name}_{dtype.short}", current.type.with_dtype(dtype))
            self.versions[key] = made
            weight = self.weights.get(current)
            if weight is not None and weight.tensor is not None:
                self.weights[made] = weight.over(_cast(weight.tensor, dtype))
            else:
                args = {"self": current, "dtype": dtype}
                self.nodes.append(Node("ir::cast", args, (made,), self._origin(value)))
        return self.versions[key]

    def _origin(self, value: Value) -> Any:
        node = self.graph.producer.get(value)
        return replace(node.origin) if node is not None else next((n.origin for n in self.graph.nodes), None)


def _cast(tensor: Any, dtype: DType) -> Any:
    """A tensor of torch in another type, by its own method: passes do not import torch."""
    return tensor.detach().half() if dtype is DType.float16 else tensor.detach().bfloat16()
