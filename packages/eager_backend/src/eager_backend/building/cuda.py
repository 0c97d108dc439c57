"""What the eager target asks of CUDA, one method a call of torch.cuda: devices, streams, events, graphs, their memory.

All of it goes through `devices.runtime`, so that a stand-in for the CPU can take its place in tests
(tests/eager/stand_in.py), which checks the order of these calls instead of making them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch


class Cuda:
    """torch's own CUDA."""

    device_type = "cuda"  # of the programs that may be captured

    def count(self) -> int:
        """How many GPUs there are."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def current(self) -> int:
        """The GPU that is current in this thread."""
        return torch.cuda.current_device()

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work of a device."""
        torch.cuda.synchronize(device)

    # -- streams and events ----------------------------------------------------------------------------------------

    def on(self, device: torch.device) -> AbstractContextManager[Any]:
        """The device is current inside."""
        return torch.cuda.device(device)

    def current_stream(self, device: torch.device) -> Any:
        """The stream that work goes to."""
        return torch.cuda.current_stream(device)

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Work goes to this stream inside."""
        return torch.cuda.stream(stream)

    @cache  # noqa: B019  (as long as the process)
    def capture_stream(self, device: torch.device) -> Any:
        """The stream of every capture: a pool's memory is reused within it alone, libraries keep 32 MB for it."""
        return torch.cuda.Stream(device)

    def event(self, timing: bool = False) -> Any:
        """A mark in the work of a stream."""
        return torch.cuda.Event(enable_timing=timing)

    # -- graphs ----------------------------------------------------------------------------------------------------

    def graph(self) -> Any:
        """An empty graph."""
        return torch.cuda.CUDAGraph()

    def pool(self) -> Any:
        """Memory for graphs that never run at the same time."""
        return torch.cuda.graph_pool_handle()

    def recording(self, graph: Any, pool: Any, stream: Any) -> AbstractContextManager[Any]:
        """Work inside goes into the graph in place of the stream; other threads may allocate meanwhile."""
        return torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local")
