"""The value of nodes whose inputs are known, by torch's own kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ir.dims import Expr
from ir.dims import evaluate as number
from ir.errors import RefusedError
from ir.graph import Node, Value, Weight, leaves, map_arg
from ir.importer.schema import DTYPES, TORCH_DTYPES, op_schema, overload_of
from ir.importer.torch_api import pytree, schema_of
from ir.importer.unchecked_numbers import check_numbers, is_division
from ir.importer.weights import TorchWeight
from ir.types import DType

FEW = 1 << 12  # elements that a kernel computes in no time


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
            results = args["self"].to(args["dtype"]) if node.op == "ir::cast" else _computed(node, args)
            flat = results if isinstance(results, (tuple, list)) else (results,)
            env.update(zip(node.outputs, flat, strict=True))
    return TorchWeight(value.name, env[value]).numpy()


def _computed(node: Node, args: dict[str, Any]) -> Any:
    try:
        return called(node, args)
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise RefusedError(f"torch fails to compute a constant by {node.op}: {said}\n  at {node.origin}") from error


def called(node: Node, args: dict[str, Any]) -> Any:
    """What torch's kernel of the node's op makes of these arguments, by the schema's names."""
    return kernel(node)(args)


def kernel(node: Node) -> Callable[[dict[str, Any]], Any]:
    """torch's kernel of the node's op as a function of the arguments by the schema's names."""
    if node.op == "ir::require":
        return lambda args: args["self"]
    overload = overload_of(node.op, node.origin.overload)
    assert overload is not None
    call = on_copies(overload) if op_schema(overload).writes else overload  # the arguments may be the model's weights
    divides = is_division(overload)
    names = [a.name for a in schema_of(overload).arguments if not a.kwarg_only]

    def run(args: dict[str, Any]) -> Any:
        if isinstance(args.get("memory_format"), str):
            args["memory_format"] = getattr(torch, args["memory_format"])
        positional = [args.pop(name) for name in names]
        named = {k: v for k, v in args.items() if k not in ("device", "layout", "pin_memory")}
        if divides:
            check_numbers(overload, tuple(positional), named)
        return call(*positional, **named)

    return run


class Kernels:
    """Nodes without symbols of their own as torch's kernels, made ready once to run many times."""

    def __init__(self, nodes: Iterable[Node], weights: Mapping[Value, Weight]) -> None:
        self._known = {v: tensor_of(w) for v, w in weights.items()}
        self._steps = [(kernel(n), *_parted(n.args), n.outputs) for n in nodes]

    def run(self, values: Mapping[Value, Tensor], sizes: Mapping[str, int]) -> dict[Value, Tensor]:
        """The values of all, of those of the inputs and of the symbols."""
        env = {**self._known, **values}

        def resolve(arg: Any) -> Any:
            return env[arg] if isinstance(arg, Value) else number(arg, sizes) if isinstance(arg, Expr) else arg

        with torch.no_grad():
            for call, fixed, others, outputs in self._steps:
                made = call({**fixed, **{k: map_arg(a, resolve) for k, a in others.items()}})
                env.update(zip(outputs, made if isinstance(made, (tuple, list)) else (made,), strict=True))
        return env


def _parted(args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that are the same in every run, as torch has them, and the others."""
    fixed: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, arg in args.items():
        varies = any(isinstance(a, (Value, Expr)) for a in leaves(arg))
        (others if varies else fixed)[name] = TORCH_DTYPES[arg] if isinstance(arg, DType) else arg
    return fixed, others


def on_copies(target: Any) -> Callable[..., Any]:
    """The kernel of an op that writes to its arguments, without doing so: their new contents follow its own results.

    A custom op that returns what it writes to returns that alone.
    """
    schema = op_schema(target)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(schema.names, args, strict=False)) | kwargs
        written = {n: pytree.tree_map_only(Tensor, Tensor.clone, given[n]) for n in schema.writes if n in given}
        args = tuple(written.get(n, a) for n, a in zip(schema.names, args, strict=False))
        result = target(*args, **kwargs | {n: w for n, w in written.items() if n in kwargs})
        if schema.in_place:
            return [result]
        contents = [t for t in pytree.tree_leaves(list(written.values())) if isinstance(t, Tensor)]
        own = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and all(t is not c for c in contents)]
        return [*own, *contents]

    return call


class _Sizes(dict[str, int]):
    """A number for any symbol: no two have the same one."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, 16 + len(self))


def result_types(node: Node, dtypes: Mapping[DType, DType]) -> tuple[DType, ...] | None:
    """What torch makes of the node with operands of other element types; None where it refuses, or shapes differ."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None or any(str(a.type) == "List[Optional[Tensor]]" for a in schema_of(overload).arguments):
        return None  # such a list is indices, whose types the meta kernels do not check
    sizes = _Sizes()
    made = _on_meta(node, sizes, dtypes)
    if made is None or [list(r.shape) for r in made] != [
        [number(d, sizes) for d in v.type.shape] for v in node.outputs
    ]:
        return None
    return tuple(DTYPES[r.dtype] for r in made)


def result_shapes(node: Node, sizes: Mapping[str, int]) -> list[tuple[int, ...]] | None:
    """The shapes that torch gives the results where the symbols have these values; None where it refuses."""
    made = _on_meta(node, sizes, {})
    return None if made is None else [tuple(r.shape) for r in made]


def flops(node: Node, sizes: Mapping[str, int]) -> int:
    """What torch's own formulas count on tensors without data; 0 for what they leave out, as elementwise ops."""
    with FlopCounterMode(display=False) as counter:
        _on_meta(node, sizes, {})
    return int(counter.get_total_flops())


def refusal(node: Node, sizes: Mapping[str, int]) -> str:
    """torch's words where its kernel refuses operands of these sizes; "" where it takes them.

    Its shape rules take some that its kernels do not, so it is the kernel that is asked where the first operand is
    small.
    """
    try:
        if any(number(d, sizes) < 0 for v in node.inputs for d in v.type.shape):
            return ""  # the trace's sizes do not hold here
        elements = math.prod(number(d, sizes) for v in node.inputs[:1] for d in v.type.shape)
        _called(node, sizes, {}, "cpu" if elements <= FEW else "meta")
    except (IndexError, RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        return "" if isinstance(error, NotImplementedError) or "not implemented" in said else said
    except Exception:  # it cannot be asked
        return ""
    return ""


def _on_meta(node: Node, sizes: Mapping[str, int], dtypes: Mapping[DType, DType]) -> list[Tensor] | None:
    """The results on tensors without data, of these sizes; None where torch refuses."""
    try:
        results = _called(node, sizes, dtypes, "meta")
    except Exception:
        return None
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    return flat if len(flat) == len(node.outputs) else None


def _called(node: Node, sizes: Mapping[str, int], dtypes: Mapping[DType, DType], device: str) -> Any:
    """What torch makes of zeros of these sizes."""

    def resolve(arg: Any) -> Any:
        if isinstance(arg, Value):
            dtype = dtypes.get(arg.type.dtype, arg.type.dtype)
            shape = [number(d, sizes) for d in arg.type.shape]
            return torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=device)
        if isinstance(arg, Expr):
            return number(arg, sizes)
        return TORCH_DTYPES[arg] if isinstance(arg, DType) else arg

    args = {k: map_arg(a, resolve) for k, a in node.args.items()}
    return args["self"].to(args["dtype"]) if node.op == "ir::cast" else called(node, args)


def tensor_of(weight: Weight) -> torch.Tensor:
    """A weight's content as a torch tensor."""
    if weight.tensor is not None:
        content: torch.Tensor = weight.tensor.detach().cpu()
        return content
    array = weight.numpy()
    if weight.type.dtype is DType.bfloat16:  # numpy has no name of its own for it
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())
