"""The value of nodes whose inputs are known, by torch's own kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ir.graph import Node, Value, Weight, map_arg
from ir.importer.schema import TORCH_DTYPES, overload_of
from ir.importer.weights import TorchWeight
from ir.types import DType


def evaluate(nodes: Iterable[Node], weights: Mapping[Value, Weight], value: Value) -> Any:
    """The content of `value` as a numpy array; the nodes make it of the weights, in order. All sizes are known."""
    env: dict[Value, Any] = {v: tensor_of(w) for v, w in weights.items()}

    def resolve(arg: Any) -> Any:
        if isinstance(arg, Value):
            return env[arg]
        return TORCH_DTYPES[arg] if isinstance(arg, DType) else arg

    with torch.no_grad():
        for node in nodes:
            args = {k: map_arg(a, resolve) for k, a in node.args.items()}
            results = args["self"].to(args["dtype"]) if node.op == "ir::cast" else _call(node, args)
            flat = results if isinstance(results, (tuple, list)) else (results,)
            env.update(zip(node.outputs, flat, strict=True))
    return TorchWeight(value.name, env[value]).numpy()


def _call(node: Node, args: dict[str, Any]) -> Any:
    overload = overload_of(node.op, node.origin.overload)
    assert overload is not None
    positional = [args.pop(a.name) for a in overload._schema.arguments if not a.kwarg_only]
    return overload(*positional, **{k: v for k, v in args.items() if k not in ("device", "layout", "pin_memory")})


def tensor_of(weight: Weight) -> torch.Tensor:
    """A weight's content as a torch tensor."""
    if weight.tensor is not None:
        return weight.tensor.detach().cpu()
    array = weight.numpy()
    if weight.type.dtype is DType.bfloat16:  # numpy has no name of its own for it
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
