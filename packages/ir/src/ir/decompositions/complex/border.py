"""Complex tensors at the border of a target that has none: real ones with a trailing dimension of 2."""

from __future__ import annotations

from typing import Any

import torch

from ir.graph import Graph


class PackedRunner:
    """A runner over real tensors, called with complex ones."""

    def __init__(self, runner: Any, graph: Graph) -> None:
        self.runner = runner
        self.complex = [v.type.dtype.is_complex for v in graph.results.values()]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The results in the order of the graph's outputs and updates."""
        real = [torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t for t in inputs]
        results = zip(self.runner(*real), self.complex, strict=True)
        return [torch.complex(*r.unbind(-1)) if c else r for r, c in results]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)
