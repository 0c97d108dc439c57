"""Programs that torch traces anew: for autocast, and for vmap and grad."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from ir.errors import CaptureError
from ir.importer import fake_rules
from ir.importer.tensor_meta import graphs_of


def functionalised(program: ExportedProgram) -> ExportedProgram:
    """torch's own functionalisation: a retrace, for autocast and function transforms.

    Raises:
        CaptureError: torch refused, or the retrace fixed a size that was dynamic.
    """
    example = program.example_inputs
    try:
        with fake_rules.dynamic():
            done: ExportedProgram = program.run_decompositions({})
    except Exception as error:
        raise CaptureError(
            "the model casts by itself (autocast), or transforms functions (vmap, grad); torch's functionalisation, "
            f"which undoes that, refused it: {error}"
        ) from error
    done.example_inputs = example
    before, after = ([str(s) for s in _input_sizes(p)] for p in (program, done))
    if len(before) == len(after) and before != after:
        changed = ", ".join(f"{b} became {a}" for b, a in zip(before, after, strict=True) if a != b)
        raise CaptureError(f"torch's functionalisation fixed sizes that were dynamic: {changed}; write without views")
    return done


def _input_sizes(program: ExportedProgram) -> list[Any]:
    names = set(program.graph_signature.user_inputs)
    fakes = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in names]
    return [s for f in fakes if isinstance(f, torch.Tensor) for s in f.shape]


def needs_retrace(module: Any) -> bool:
    """True for autocast, which casts inside of ops, and for vmap, whose calls are no operators."""

    def names(n: torch.fx.Node) -> tuple[str, str]:
        return getattr(n.target, "__name__", ""), getattr(n.target, "__module__", "") or ""

    if any("functorch" in names(n)[1] for n in module.graph.nodes if n.op == "call_function"):
        return True
    return any(
        n.op == "call_function" and names(n)[0] == "wrap_with_autocast" and n.args[2]
        for graph in graphs_of(module)
        for n in graph.nodes
    )
