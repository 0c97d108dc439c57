"""What a graph demands of the sizes of its inputs (`ir::require`), looked at before a program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ir.dims import Dim, Expr, evaluate
from ir.errors import RefusedError
from ir.graph import Graph, Node, Range, Value

CUTS = frozenset({"aten::slice", "aten::tensor_split"})  # what makes a fixed size of a dynamic one


class Conditions:
    """The types of the inputs, and those conditions that follow from their shapes; the rest is the runtime's."""

    def __init__(self, graph: Graph) -> None:
        places = {v: i for i, v in enumerate(graph.inputs)}
        carried = {n: s for n, s in graph.sources.items() if s.value in places and s.axis is not None}
        nodes = [n for n in graph.nodes if n.op == "ir::require"]
        self._nodes: list[Node] = [n for n in nodes if n.args["condition"].symbols <= carried.keys()]
        self._sources = [(n, places[s.value], s) for n, s in sorted(carried.items())]
        self._inputs = graph.inputs
        self._accepted: list[Any] = []  # the types of the last inputs that were looked at
        self._ranges = {n: graph.symbols.get(n, Range()) for n in carried}

    def check(self, inputs: Sequence[Any]) -> None:
        """Look at tensors that a program is given.

        Raises:
            RefusedError: an input has another element type or other sizes than the program was made for.
        """
        given = [(x.dtype, x.shape) for x in inputs]
        if given == self._accepted:
            return
        for value, x in zip(self._inputs, inputs, strict=True):
            if len(x.shape) != value.type.rank or str(x.dtype) != f"torch.{value.type.dtype.name}":
                raise misfit(value, self._ranges, x)
        sizes = {n: (inputs[i].shape[s.axis] - s.offset) // s.scale for n, i, s in self._sources}
        for value, x in zip(self._inputs, inputs, strict=True):
            for d, size in zip(value.type.shape, x.shape, strict=True):
                if not isinstance(d, Expr):
                    fits = d == size
                elif d.as_symbol in sizes:
                    r = self._ranges[d.as_symbol]
                    fits = size == sizes[d.as_symbol] and size >= (r.min or 0) and (r.max is None or size <= r.max)
                else:
                    fits = not d.symbols <= sizes.keys() or evaluate(d, sizes) == size
                if not fits:
                    raise misfit(value, self._ranges, x)
        for node in self._nodes:
            if not evaluate(node.args["condition"], sizes):
                at = ", ".join(f"{n}={sizes[n]}" for n in sorted(node.args["condition"].symbols))
                raise RefusedError(f"the program was not captured for {at}: {node.args['message']}\n  at {node.origin}")
        self._accepted = given


def misfit(value: Value, ranges: Mapping[str, Range], given: Any) -> RefusedError:
    """What to raise for an input that is no tensor of the type `value` has."""
    names = [d.as_symbol for d in value.type.shape if isinstance(d, Expr) and d.as_symbol in ranges]
    known = [(n, ranges[n]) for n in dict.fromkeys(names) if n is not None]
    ends = [f"{r.min or 0} <= {n}" + ("" if r.max is None else f" <= {r.max}") for n, r in known if r != Range()]
    wanted = f"{value.type}" + (f" with {' and '.join(ends)}" if ends else "")
    is_tensor = hasattr(given, "dtype") and hasattr(given, "shape")
    what = f"{given.dtype}{list(given.shape)}".removeprefix("torch.") if is_tensor else f"a {type(given).__name__}"
    return RefusedError(
        f"the input {value.name} is {what}, the program was made for {wanted}; capture the model anew with "
        "dynamic_shapes for other sizes, cast it for another element type"
    )


def shorter(target: str, graph: Graph, inputs: Sequence[Any]) -> RefusedError | None:
    """What to raise at 0 and 1 where a slice is shorter than torch.export traced it; None where all are as traced.

    Of a runtime whose own slice fails there: it may have none to run, where only the size of the slice is read.
    """
    given = {
        d.as_symbol: n
        for v, x in zip(graph.inputs, inputs, strict=True)
        for d, n in zip(v.type.shape, x.shape, strict=False)
        if isinstance(d, Expr) and d.as_symbol
    }
    if graph.context is None or all(n > 1 for n in given.values()):
        return None
    for node in graph.nodes:
        dims = [d for v in (*node.inputs, *node.outputs) for d in v.type.shape if isinstance(d, Expr)]
        if node.op not in CUTS or not dims or any(not d.symbols <= given.keys() for d in dims):
            continue
        traced = [tuple(evaluate(d, given) for d in v.type.shape) for v in node.outputs]
        if (true := graph.context.result_shapes(node, given)) is not None and true != traced:
            at = ", ".join(f"{name}={n}" for name, n in given.items() if n < 2)
            why = f"{node.op[6:]} does not hold at {at}, since torch.export traces a model for sizes from 2 on"
            return RefusedError(f"target {target!r} refuses to run: {why}\n  at {node.origin}")
    return None


def untraced(
    target: str, shapes: Sequence[Sequence[Dim]], inputs: Sequence[Any], error: Exception
) -> RefusedError | None:
    """What to raise where a runtime fails at sizes that torch.export does not trace for; None at others.

    `shapes` are those of the graph's inputs.
    """
    sizes = {
        d.as_symbol: n
        for dims, x in zip(shapes, inputs, strict=True)
        for d, n in zip(dims, x.shape, strict=False)
        if isinstance(d, Expr) and d.as_symbol
    }
    small = ", ".join(f"{name}={n}" for name, n in sizes.items() if n < 2)
    reason = f"a step does not hold at {small}, since torch.export traces a model for sizes from 2 on"
    return RefusedError(f"target {target!r} refuses to run: {reason}\n{error}") if small else None
