"""A program replayed as a CUDA graph: one launch a call, for the shapes that it was captured with.

Follows the rules of torch.cuda.graph and what torch.cuda.make_graphed_callables does: warm-up on the stream of the
capture, inputs copied into fixed tensors, results copied out of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eager_backend.building import devices
from eager_backend.building.contracts import CompiledProgram
from eager_backend.building.source import failed_step
from ir.dims import Expr
from ir.errors import ExportError
from ir.graph import Node

_WARM_UP = 3  # calls before a capture: libraries choose their kernels and allocate their workspaces
_CAPTURING = threading.Lock()  # CUDA allows one capture at a time in a process
_WAIT = {
    "higher_order::cond": "chooses a branch by a tensor's content",
    "higher_order::while_loop": "loops by a tensor's content",
}
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
    from: recordings share one memory pool, which is safe only then. Each combination of shapes keeps memory of its own.
    """

    def __init__(self, program: CompiledProgram, device: torch.device) -> None:
        written = set(program.graph.updates).intersection(v.name for v in program.graph.inputs)
        self._cuda = devices.runtime
        if device.type != self._cuda.device_type:
            raise ExportError(f"CUDA graphs need a program on a GPU, this one is on {device}: Eager(device='cuda')")
        if written:
            raise ExportError(f"the program writes to its inputs ({', '.join(sorted(written))}), which a replay cannot")
        for reason in obstacles(program):
            raise ExportError(f"the program cannot be captured as a CUDA graph: {reason}; call the program itself")
        self.program = program
        self.device = device
        self._stream = self._cuda.capture_stream(device)
        self._pool: Any = None
        self._recordings: dict[Key, _Recording] = {}
        self._run = program.run  # the recordings' own: it keeps the tensors alive that they read
        self._lock = threading.Lock()
        self._done = self._cuda.event()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The results for these inputs, in the order of `graph.results`, on the current stream."""
        key = tuple((t.shape, t.dtype) for t in inputs)
        with self._lock, self._cuda.on(self.device), torch.inference_mode(False), torch.no_grad():
            stream = self._cuda.current_stream(self.device)
            stream.wait_event(self._done)  # of the last call, which may have been on another stream
            if self._run is not self.program.run:  # other weights were loaded
                self._done.synchronize()  # a graph must not go while it runs
                self._recordings, self._run = {}, self.program.run
            recording = self._recordings.get(key)
            if recording is None:
                recording = self._recordings[key] = self._record(inputs)
            for static, given in zip(recording.inputs, inputs, strict=True):
                static.copy_(given)
            recording.graph.replay()
            results = tuple(t.clone() for t in recording.outputs)
            self._done.record(stream)
        return results

    def _record(self, inputs: Sequence[Tensor]) -> _Recording:
        if not self._recordings:
            self._pool = self._cuda.pool()  # a pool that all graphs have left cannot be entered again
        static = tuple(t.detach().to(self.device, copy=True) for t in inputs)
        buffers = [self.program.weights[s.name] for s in self.program.constants.written]
        before = [b.clone() for b in buffers]
        graph = self._cuda.graph()
        caller = self._cuda.current_stream(self.device)
        self._stream.wait_stream(caller)
        try:
            # the streams' context stands outside of the graph's, which does not give the stream back when it fails
            with _CAPTURING, self._cuda.on_stream(self._stream):
                try:
                    with devices.same_random_numbers(self.device):
                        for _ in range(_WARM_UP):
                            self.program(*static)
                finally:
                    for buffer, old in zip(buffers, before, strict=True):  # warming up is no call
                        buffer.copy_(old)
                with self._cuda.recording(graph, self._pool, self._stream):
                    outputs = self.program(*static)
        except RuntimeError as error:
            first = error.__context__ or error  # what ends a failed capture says only that it has failed
            reason, step = str(first).partition("\n")[0], failed_step(first, self.program.run)
            raise ExportError(
                f"the program cannot be captured as a CUDA graph: {reason}\n  in the step {step or 'that ends it'}\n"
                f"  A step that waits for the GPU cannot be recorded (indices of bools, copies to the CPU, custom ops "
                f"that read numbers); call the program itself instead"
            ) from error
        finally:
            caller.wait_stream(self._stream)
        return _Recording(graph, static, outputs)


def obstacles(program: CompiledProgram) -> Iterator[str]:
    """Steps that wait for the GPU: numbers and sizes out of tensors, branches, loops. A failed capture costs more."""
    known = {s for v in program.graph.inputs for d in v.type.shape if isinstance(d, Expr) for s in d.symbols}
    items = {n.args["self"]: n for n in program.graph.nodes if n.op == "ir::item"}
    for step in program.plan.block.steps:
        if step.fn is Tensor.item:
            node = items.get(program.plan.values.get(step.args[0]), step.node)
            yield f"it reads a number out of {step.args[0].name}" + (f"\n  at {node.origin}" if node else "")
        if step.node is not None:
            yield from _waiting(step.node, known)


def _waiting(node: Node, known: set[str]) -> Iterator[str]:
    dims = [d for v in node.outputs for d in v.type.shape if isinstance(d, Expr)]
    unknown = sorted({s for d in dims for s in d.symbols} - known)
    what = _WAIT.get(node.op) or (f"makes a tensor whose size {unknown[0]} depends on the content" if unknown else "")
    if what:
        yield f"{node.overload} {what}\n  at {node.origin}"
    for graph in node.graphs:
        for inner in graph.nodes:
            yield from _waiting(inner, known)
