"""torch's own value of every node of a graph, in the graph's element types or in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ir.dims import Expr, evaluate
from ir.errors import ExportError
from ir.graph import Graph, Node, SymbolSource, Value, map_arg
from ir.importer.evaluate import called, tensor_of
from ir.importer.schema import TORCH_DTYPES
from ir.importer.torch_api import generic_associative_scan
from ir.types import DType


def widest(dtype: torch.dtype) -> torch.dtype:
    """float64, or complex128, for a floating type; others as they are."""
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def widened(tensor: Tensor) -> Tensor:
    """The tensor in the widest type of its kind."""
    return tensor.to(widest(tensor.dtype))


@dataclass
class Values:
    """A run of a graph by torch's kernels: the value of everything in it, and of the symbols of its sizes.

    `wide` computes in float64 whatever floating type the graph has.
    """

    graph: Graph
    wide: bool = False
    of: dict[Value, Tensor] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    failed: dict[Node, str] = field(default_factory=dict)  # nodes without a kernel in float64, and why

    def __post_init__(self) -> None:
        self._carriers: dict[Value, list[tuple[str, SymbolSource]]] = {}
        for name, source in self.graph.sources.items():
            self._carriers.setdefault(source.value, []).append((name, source))

    def run(self, inputs: Sequence[Tensor], beside: Values | None = None) -> Values:
        """All values for these inputs; a node that has no kernel in float64 takes its results from `beside`."""
        for value, tensor in zip(self.graph.inputs, inputs, strict=True):
            self.keep(value, tensor.detach())
        for value, weight in self.graph.weights.items():
            self.keep(value, self._trained(weight.name, tensor_of(weight)))
        with torch.no_grad():
            for node in self.graph.nodes:
                try:
                    self.node(node)
                except Exception as error:
                    if beside is None:
                        raise ExportError(f"torch fails at {node.overload}: {error}\n  at {node.origin}") from error
                    self.failed[node] = str(error)
                    for value in node.outputs:
                        self.keep(value, beside.of[value])
        return self

    def _trained(self, name: str, tensor: Tensor) -> Tensor:
        """A weight that wants a gradient where the model's does: torch chooses kernels of products by that too."""
        program = getattr(self.graph.context, "program", None)
        own = program.state_dict.get(name) if program is not None and not self.wide else None
        return tensor.detach().requires_grad_() if own is not None and own.requires_grad else tensor

    def keep(self, value: Value, tensor: Tensor) -> None:
        """Note a value, and what its sizes say of symbols."""
        self.of[value] = widened(tensor) if self.wide else tensor
        for name, source in self._carriers.get(value, ()):
            if name not in self.sizes:
                if source.axis is not None:
                    self.sizes[name] = (tensor.shape[source.axis] - source.offset) // source.scale
                else:
                    self.sizes[name] = tensor.item()

    def node(self, node: Node) -> None:
        """Compute one node from the values of its operands."""
        for value, tensor in zip(node.outputs, self.results(node), strict=True):
            self.keep(value, tensor)

    def results(self, node: Node) -> list[Tensor]:
        """What torch makes of a node's operands, as they are noted here."""
        args = {k: map_arg(a, self._resolve) for k, a in node.args.items()}
        made = _OWN[node.op](self, args) if node.op in _OWN else self._called(node, args)
        return list(_flat(made))[: len(node.outputs)]

    def _called(self, node: Node, args: dict[str, Any]) -> Any:
        if not node.op.startswith("ir::"):
            return called(node, args)
        body = self.graph.context.body(node)
        if body is None:
            raise ExportError(f"{node.op} has neither a kernel of torch nor a body")
        return self.inner(body.graph, [self.of[v] for v in node.inputs])

    def inner(self, graph: Graph, operands: Sequence[Tensor]) -> list[Tensor]:
        """The results of a sub-graph or a body."""
        inside = Values(graph.replace(context=self.graph.context), self.wide, sizes=dict(self.sizes)).run(operands)
        return [inside.of[v] for v in graph.results.values()]

    def function(self, graph: Graph) -> Callable[..., list[Tensor]]:
        """A sub-graph to be called with tensors."""
        return lambda *operands: self.inner(graph, operands)

    def _resolve(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            return self.of[arg]
        if isinstance(arg, Expr):
            return evaluate(arg, self.sizes)
        if isinstance(arg, DType):
            return widest(TORCH_DTYPES[arg]) if self.wide else TORCH_DTYPES[arg]
        return arg


def _flat(made: Any) -> Iterator[Tensor]:
    """The tensors of a result, those in lists among them."""
    if isinstance(made, (tuple, list)):
        for part in made:
            yield from _flat(part)
    elif made is not None:
        yield made


def _tensors(operands: Sequence[Any]) -> list[Tensor]:
    return [o for o in operands if isinstance(o, Tensor)]


def _cond(v: Values, a: Mapping[str, Any]) -> list[Tensor]:
    return v.inner(a["true_graph"] if a["pred"] else a["false_graph"], _tensors(a["operands"]))


def _while(v: Values, a: Mapping[str, Any]) -> list[Tensor]:
    carried, additional = list(a["carried_inputs"]), _tensors(a["additional_inputs"])
    while v.inner(a["cond_graph"], [*carried, *additional])[0]:
        carried = v.inner(a["body_graph"], [*carried, *additional])
    return carried


def _scan(v: Values, a: Mapping[str, Any]) -> list[Tensor]:
    carry, rows, additional = list(a["init"]), [], _tensors(a["additional_inputs"])
    for i in range(a["xs"][0].shape[0]):
        made = v.inner(a["combine_graph"], [*carry, *(x.select(0, i) for x in a["xs"]), *additional])
        carry, row = made[: len(carry)], made[len(carry) :]
        rows.append(row)
    if not rows:
        row = v.inner(a["combine_graph"], [*carry, *(x.new_zeros(x.shape[1:]) for x in a["xs"]), *additional])
        return [*carry, *(r.new_empty((0, *r.shape)) for r in row[len(carry) :])]
    return [*carry, *map(torch.stack, zip(*rows, strict=True))]


def _associative_scan(v: Values, a: Mapping[str, Any]) -> Any:
    combine = v.function(a["combine_graph"])
    return generic_associative_scan(combine, list(a["xs"]), 0, _tensors(a["additional_inputs"]))


def _map(v: Values, a: Mapping[str, Any]) -> list[Tensor]:
    rows = [
        v.inner(a["graph"], [*row, *_tensors(a["pos_args"])])
        for row in zip(*(x.unbind(0) for x in a["xs"]), strict=True)
    ]
    return list(map(torch.stack, zip(*rows, strict=True)))


_OWN: dict[str, Callable[[Values, Mapping[str, Any]], Any]] = {
    "ir::cast": lambda v, a: a["self"].to(a["dtype"]),
    "ir::scalar": lambda v, a: torch.tensor(a["value"], dtype=a["dtype"]),
    "ir::call": lambda v, a: v.inner(a["graph"], a["operands"]),
    "ir::item": lambda v, a: None,
    "ir::require": lambda v, a: a["self"],
    "higher_order::cond": _cond,
    "higher_order::while_loop": _while,
    "higher_order::scan": _scan,
    "higher_order::associative_scan": _associative_scan,
    "higher_order::map_impl": _map,
}
