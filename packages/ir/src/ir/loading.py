"""An artifact in its runtime, with what the target lacks made up for at its border."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ir.decompositions.complex.border import PackedRunner
from ir.graph import Graph
from ir.target import Runner, Target


def loaded(target: Target, artifact: Any, graph: Graph, path: Path | None) -> Runner:
    """The artifact in its runtime, with complex tensors packed and unpacked at the border where the target has none."""
    runner = target.runner(artifact, graph, path)
    border = (*graph.inputs, *graph.results.values())
    packed = not target.has_complex and any(v.type.dtype.is_complex for v in border)
    return PackedRunner(runner, graph) if packed else runner
