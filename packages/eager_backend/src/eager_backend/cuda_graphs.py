"""A program replayed as a CUDA graph: one launch a call, for the shapes that it was captured with.

Follows the rules of torch.cuda.graph: warm-up on a side stream, inputs copied into fixed tensors, results copied out of
them. Not run on a GPU so far: see DESIGN.md.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ir.errors import ExportError

if TYPE_CHECKING:
    from eager_backend.program import Program

_WARM_UP = 3  # calls before a capture: libraries choose their kernels and allocate their workspaces
Key = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True)
class _Recording:
    """One captured graph with the tensors that it reads and writes."""

    graph: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class CapturedProgram:
    """Called as the program it is made from; each new combination of shapes is captured at its first call.

    Results are the caller's own copies. Calls are ordered one after the other, whatever streams and threads they come
    from: recordings share one memory pool, which is safe only then.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        written = set(program.graph.updates).intersection(v.name for v in program.graph.inputs)
        if device.type != "cuda":
            raise ExportError(f"CUDA graphs need a program on a GPU, this one is on {device}: Eager(device='cuda')")
        if written:
            raise ExportError(f"the program writes to its inputs ({', '.join(sorted(written))}), which a replay cannot")
        self.program = program
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._recordings: dict[Key, _Recording] = {}
        self._run = program.run  # the recordings' own: it keeps the tensors alive that they read
        self._lock = threading.Lock()
        self._done = torch.cuda.Event()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results for these inputs, in the order of `graph.results`, on the current stream."""
        key = tuple((t.shape, t.dtype) for t in inputs)
        with self._lock, torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
            stream = torch.cuda.current_stream()
            stream.wait_event(self._done)  # of the last call, which may have been on another stream
            if self._run is not self.program.run:  # other weights were loaded
                self._recordings, self._run = {}, self.program.run
            recording = self._recordings.get(key)
            if recording is None:
                recording = self._recordings[key] = self._record(inputs)
            for static, given in zip(recording.inputs, inputs, strict=True):
                static.copy_(given, non_blocking=True)
            recording.graph.replay()
            results = tuple(t.clone() for t in recording.outputs)
            self._done.record(stream)
        return results

    def _record(self, inputs: Sequence[Tensor]) -> _Recording:
        static = tuple(t.detach().to(self.device, copy=True) for t in inputs)
        buffers = [self.program.weights[s.name] for s in self.program.constants.written]
        before = [b.clone() for b in buffers]
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self.program(*static)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, pool=self._pool):
                outputs = self.program(*static)
        except RuntimeError as error:
            raise ExportError(
                f"the program cannot be captured as a CUDA graph: {error}\n  A step that waits for the GPU cannot "
                f"(sizes read out of tensors, torch.cond, loops, copies to the CPU); call the program itself instead"
            ) from error
        finally:
            for buffer, old in zip(buffers, before, strict=True):  # warming up is no call
                buffer.copy_(old)
        return _Recording(graph, static, outputs)
