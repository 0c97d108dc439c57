"""The captured program run by torch itself, for sizes at which results have another rank than in the graph.

`x.squeeze()` of a dynamic axis drops it at size 1. The graph, and the passes over it, are right for the rank that was
captured; torch's own program takes the other as well, so it runs in the program's place, over the program's weights.
So it does where a step fails at a size of 0 or 1: writes to inputs and buffers are the last step, or may be done twice
(`passes/updates.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eager_backend.building.contracts import CompiledProgram
from ir.conditions import sizes_of, unmet
from ir.errors import RefusedError
from ir.graph import Graph
from ir.importer.calling_convention import TENSOR, Fixed, Integer
from ir.importer.conditions import PIECES
from ir.importer.torch_api import storage_key


class OtherRank(RefusedError):
    """The sizes of this call are not those that the graph holds for."""


class OtherSide(RefusedError, RuntimeError):
    """torch's own module refuses these inputs too, with a RuntimeError: the code took another way in the capture."""


def hold(condition: Any, message: str) -> None:
    """A step of the program that looks at a condition of the capture."""
    if not condition:
        raise OtherSide(message)


def require(condition: Any, message: str) -> None:
    """A step of the program: nothing has been written yet when it raises."""
    if not condition:
        raise OtherRank(message)


def look_again(graph: Graph, inputs: Sequence[Any], reason: Exception) -> None:
    """Raises OtherSide: the call failed since a condition of the capture does not hold, or has no value."""
    whole = len(inputs) == len(graph.inputs) and all(isinstance(x, Tensor) for x in inputs)
    if whole and (message := unmet(graph, sizes_of(graph, inputs))):
        raise OtherSide(message) from reason


def run(program: CompiledProgram, inputs: Sequence[Tensor], reason: Exception) -> tuple[Tensor, ...]:
    """The results of `graph.results`, with all writes done.

    Raises:
        Exception: `reason`, where there is no captured program, its element types are not this one's, or torch does not
            take these sizes either.
    """
    graph, ep = program.graph, getattr(program.graph.context, "program", None)
    if ep is None or not program.plan.as_captured:
        raise reason
    if message := unmet(graph, sizes_of(graph, inputs)):  # of the importer's: torch's program does not ask
        raise OtherSide(message) from reason
    given = arguments(program, inputs)
    with torch.no_grad():
        try:
            if _counts_pieces(graph):
                _Pieces(ep.graph_module).run(*[g.clone() if isinstance(g, Tensor) else g for g in given])
            returned = ep.graph_module(*given)
        except Exception as error:
            raise reason from error
        specs = ep.graph_signature
        pairs = zip(specs.input_specs, given, strict=True)
        names = {n: value for s, value in pairs for n in (s.target, getattr(s.arg, "name", None)) if n}
        names |= dict(zip((v.name for v in graph.inputs), inputs, strict=True))
        outputs = []
        for value, spec in zip(returned, specs.output_specs, strict=True):
            if spec.kind.name == "USER_OUTPUT":
                outputs.append(value)
            else:
                names[spec.target].copy_(value)
    leaves = [o for o, kind in zip(outputs, graph.structure.outputs, strict=True) if not isinstance(kind, Fixed)]
    tensors = [o if isinstance(o, Tensor) else torch.tensor(o, dtype=_wide(o)) for o in leaves]
    weights = {storage_key(t) for t in program.weights.values() if t.layout is torch.strided}
    own = [t.clone() if t.layout is torch.strided and storage_key(t) in weights else t for t in tensors]
    return (*own, *(names[name].clone() for name in graph.updates))


class _Pieces(torch.fx.Interpreter):
    """torch's own program, which reads as many pieces as the example had, and does not see that there are others."""

    def run_node(self, n: torch.fx.Node) -> Any:
        result, captured = super().run_node(n), n.meta.get("val")
        if isinstance(captured, list | tuple) and len(result) != len(captured):
            raise ValueError(f"{n.name} has {len(result)} pieces for {len(captured)}")
        return result


def _counts_pieces(graph: Graph) -> bool:
    """True if the number of pieces depends on a size."""
    required = {v for n in graph.nodes if n.op == "ir::require" for v in n.outputs}
    return any(n.op in PIECES and not required.isdisjoint(n.inputs) for n in graph.nodes)


def _wide(number: Any) -> torch.dtype | None:
    return torch.float64 if isinstance(number, float) else None


def arguments(program: CompiledProgram, inputs: Sequence[Tensor]) -> list[Any]:
    """What the placeholders of the captured graph take: the program's own weights, and the inputs."""
    ep = program.graph.context.program
    given, leaves = iter(inputs), iter(program.graph.structure.inputs)
    found: list[Any] = []
    for spec in ep.graph_signature.input_specs:
        if spec.target is not None:
            place = program.constants.model_names.get(spec.target)
            captured = ep.constants[spec.target] if spec.target in ep.constants else ep.state_dict[spec.target]
            found.append(captured if place is None else program.weights[place])
        else:
            leaf = next(leaves)
            number = isinstance(leaf, Integer)
            found.append(int(next(given)) if number else next(given) if leaf is TENSOR else leaf)
    return found
