"""The definition of what a graph means: each node run through torch.ops, one after the other. Static sizes only."""

from __future__ import annotations

from typing import Any

import torch

from ir.graph import Graph, Value, map_arg
from ir.importer.evaluate import tensor_of
from ir.importer.schema import TORCH_DTYPES, overload_of
from ir.types import DType


def run(graph: Graph, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The values of `graph.results`."""
    env: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for value, weight in graph.weights.items():
        env[value] = tensor_of(weight)

    def resolve(arg: Any) -> Any:
        if isinstance(arg, Value):
            return env[arg]
        return TORCH_DTYPES[arg] if isinstance(arg, DType) else arg

    for node in graph.nodes:
        args = {k: map_arg(a, resolve) for k, a in node.args.items()}
        if node.op == "ir::cast":
            results = args["self"].to(args["dtype"])
        elif node.op == "ir::call":
            results = run(node.args["graph"], *args["operands"])
        elif node.op == "ir::scalar":
            results = torch.tensor(args["value"], dtype=args["dtype"])
        elif node.op.startswith("ir::"):
            results = run(graph.context.body(node).graph, *(env[v] for v in node.inputs))
        else:
            overload = overload_of(node.op, node.origin.overload)
            positional = [args.pop(a.name) for a in overload._schema.arguments if not a.kwarg_only]
            results = overload(*positional, **{k: v for k, v in args.items() if k not in ("device", "layout")})
        flat = results if isinstance(results, (tuple, list)) else (results,)
        env.update(zip(node.outputs, flat, strict=True))
    return [env[v] for v in graph.results.values()]
