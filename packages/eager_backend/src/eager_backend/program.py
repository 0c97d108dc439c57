"""The compiled program: a generated function, the tensors it refers to, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from eager_backend.constants import Constants
from eager_backend.cuda_graphs import CapturedProgram
from ir.graph import Graph

_inference = torch.is_inference_mode_enabled
_enabled = torch.is_grad_enabled
_set_enabled = torch._C._set_grad_enabled
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


class Program:
    """Call it with one tensor for each input of the graph; the results come back in the order of `graph.results`.

    A call keeps all of its state in locals, so that any number of threads may share one program.
    """

    def __init__(
        self, graph: Graph, run: Callable[..., Any], source: str, constants: Constants, device: torch.device
    ) -> None:
        self.graph = graph
        self.run = run  # the bare function: no guard around it, for callers that are in inference mode anyway
        self.source = source
        self.constants = constants
        self.device = device

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The model's own tensors by their names in the source."""
        return self.constants.weights

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results, as ordinary tensors without a gradient; inference tensors in inference mode."""
        if _inference():
            return self.run(*inputs)
        # no_grad alone would still pass through the autograd kernels, a tenth of the time of a small op
        before = _enabled()
        _set_enabled(False)
        try:
            with _BelowAutograd():
                return self.run(*inputs)
        finally:
            _set_enabled(before)

    def capture(self, *example_inputs: torch.Tensor) -> CapturedProgram:
        """The program as CUDA graphs, captured for the shapes of these inputs now and for others when they come.

        Raises:
            ExportError: the program is not on a GPU, writes to its inputs, or has steps that wait for the GPU.
        """
        captured = CapturedProgram(self, self.device)
        captured(*example_inputs)
        return captured

    def listing(self) -> str:
        """The program as text: every function with one line a step, and the tensors that its free names are."""
        weights = [f"# {n} = {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for n, t in self.weights.items()]
        derived = [f"# {', '.join(r.names)} = {r}" for r in self.constants.recipes]
        return "\n".join([*weights, *derived, "", self.source]).lstrip("\n")

    def refresh(self) -> None:
        """Take in new contents of `weights`: what was derived from them at load is computed again."""
        self.constants.refresh()

    def __repr__(self) -> str:
        return f"<eager program of {len(self.graph.nodes)} nodes>"
