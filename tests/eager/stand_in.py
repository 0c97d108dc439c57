"""CUDA's streams and graphs on the CPU: ops run at once, and the order that a GPU would need is checked.

A stream knows, as a vector clock, how far each other stream had come when it last waited for it. An op on a stream may
read only what its stream knows to be written, and write only what it knows to be read: all else is a race on a GPU. A
graph is the list of ops that ran while it was recorded, whose effects on other memory than the graph's own are taken
back; a replay runs them again on the very tensors of the recording.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from eager_backend.building.cuda import Cuda

_CONTENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
Clock = dict["Stream", int]


class Misuse(AssertionError):
    """What would be wrong, or undefined, on a GPU."""


@dataclass(eq=False)
class Stream:
    """The clock counts its own ops, and what it knows of others."""

    cuda: StandIn
    known: Clock = field(default_factory=dict)

    def wait_stream(self, other: Stream) -> None:
        self._learn(other.known)

    def wait_event(self, event: Event) -> None:
        self._learn(event.known)

    def _learn(self, other: Clock) -> None:
        for stream, time in other.items():
            self.known[stream] = max(self.known.get(stream, 0), time)


@dataclass(eq=False)
class Event:
    cuda: StandIn
    known: Clock = field(default_factory=dict)

    def record(self, stream: Stream) -> None:
        self.known = dict(stream.known)

    def synchronize(self) -> None:
        self.cuda.wait("Event.synchronize")
        self.cuda.host.wait_event(self)


@dataclass
class _Op:
    """One op of a recording; tensors that it did not make itself are not kept alive, as on a GPU."""

    func: Any
    args: Any
    made: Any


class Graph:
    """What was recorded."""

    def __init__(self, cuda: StandIn) -> None:
        self.cuda = cuda
        self.ops: list[_Op] = []
        self.own: dict[int, Tensor] = {}  # what lies in the pool
        self.pool: Pool | None = None

    def replay(self) -> None:
        if self.pool is None:
            raise Misuse("a graph is replayed that was not recorded")
        self.cuda.wait("CUDAGraph.replay", waits=False)
        self.cuda.log.append("replay")
        self.cuda.touched(self.pool, reads=False)  # its memory is that of every graph of the pool
        for op in self.ops:
            args, kwargs = pytree.tree_map_only(weakref.ref, self._alive, op.args)
            self.cuda.ordered(op.func, (args, kwargs))
            with self.cuda.unwatched():
                again = op.func(*args, **kwargs)
                made = pytree.tree_map_only(weakref.ref, self._alive, op.made)
                for old, new in zip(_tensors(made), _tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            self.cuda.written(made)

    def _alive(self, reference: Any) -> Tensor:
        tensor: Tensor | None = reference()
        if tensor is None:
            raise Misuse("a replay reads memory that was given back since the recording")
        return tensor


class Pool:
    """Memory of graphs."""


class StandIn(Cuda):
    """In place of `devices.runtime`; ops are seen inside of `watching()`."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.host = self.default = Stream(self)
        self.stream = self.default
        self._side = Stream(self)
        self.recorded: Graph | None = None
        self.log: list[str] = []  # ops and replays, in order
        self._writes: dict[Any, tuple[Stream, int]] = {}
        self._reads: dict[Any, Clock] = {}
        self._watch = _Watch(self)
        self._quiet = False
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what a recording wrote to, and what was there

    # -- what Cuda has ---------------------------------------------------------------------------------------------

    def count(self) -> int:
        return 1

    def synchronize(self, device: torch.device) -> None:
        self.wait("synchronize")

    def on(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def current_stream(self, device: torch.device) -> Stream:
        return self.stream

    @contextlib.contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def capture_stream(self, device: torch.device) -> Stream:
        return self._side

    def event(self, timing: bool = False) -> Event:
        return Event(self)

    def graph(self) -> Graph:
        return Graph(self)

    def pool(self) -> Pool:
        return Pool()

    @contextlib.contextmanager
    def recording(self, graph: Graph, pool: Pool, stream: Stream) -> Iterator[None]:
        if self.recorded is not None or stream is self.default:
            raise Misuse("two recordings at once, or one on the default stream")
        self.recorded, graph.pool = graph, pool
        try:
            with self.on_stream(stream):
                yield
        finally:
            self.recorded = None
            with self.unwatched():
                for tensor, before in self._before.values():
                    tensor.copy_(before)
            self._before.clear()

    # -- what is checked -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[StandIn]:
        """Inside, every op belongs to a stream."""
        with self._watch:
            yield self

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def wait(self, what: str, waits: bool = True) -> None:
        """The host waits, or does something else that a recording does not allow."""
        if self.recorded is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        if waits:
            self.host._learn(self._side.known)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op of the program."""
        if self._quiet:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if any(tag in func.tags for tag in _CONTENT) and _asks(func, args):
            self.wait(name)
        self.log.append(name)
        if self.recorded is not None:
            return self._record(self.recorded, func, args, kwargs)
        self.ordered(func, (args, kwargs))
        made = func(*args, **kwargs)
        self.written(made)
        return made

    def _record(self, graph: Graph, func: Any, args: Any, kwargs: Any) -> Any:
        own = graph.own
        for tensor, writes in _operands(func, (args, kwargs)):
            if writes and id(tensor) not in own and id(tensor) not in self._before:
                with self.unwatched():
                    self._before[id(tensor)] = tensor, tensor.clone()
        made = func(*args, **kwargs)
        outside = {id(t) for t in _tensors((args, kwargs))} - own.keys()  # what is written in place is handed back
        own.update((id(t), t) for t in _tensors(made) if id(t) not in outside)
        held = pytree.tree_map_only(Tensor, lambda t: t if id(t) in own else weakref.ref(t), (args, kwargs, made))
        graph.ops.append(_Op(func, held[:2], held[2]))
        return made

    def ordered(self, func: Any, args: Any) -> None:
        """The stream knows all that was written to what this op reads or writes, and all that read what it writes."""
        for tensor, writes in _operands(func, args):
            self.touched(_memory(tensor), reads=not writes)

    def written(self, made: Any) -> None:
        self.stream.known[self.stream] = self.stream.known.get(self.stream, 0) + 1
        for tensor in _tensors(made):
            self._writes[_memory(tensor)] = self.stream, self.stream.known[self.stream]
            self._reads.pop(_memory(tensor), None)

    def touched(self, what: Any, reads: bool) -> None:
        """A stream comes to some memory."""
        known = self.stream.known
        writer, time = self._writes.get(what, (self.stream, 0))
        if known.get(writer, 0) < time:
            raise Misuse("a stream uses what another one may still be writing")
        readers = self._reads.setdefault(what, {})
        if not reads:
            if any(known.get(s, 0) < t for s, t in readers.items() if s is not self.stream):
                raise Misuse("a stream writes over what another one may still be reading")
            readers.clear()
            self._writes[what] = self.stream, known.get(self.stream, 0) + 1
            known[self.stream] = known.get(self.stream, 0) + 1
        readers[self.stream] = known.get(self.stream, 0)


class _Watch(TorchDispatchMode):
    def __init__(self, cuda: StandIn) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (
            self.cuda.run(func, args, dict(kwargs or {})) if func.namespace != "prim" else func(*args, **kwargs or {})
        )


def _asks(func: Any, args: Any) -> bool:
    """Indices ask for content where a mask is among them."""
    masks = [t for t in _tensors(args[1:2]) if t.dtype in (torch.bool, torch.uint8)]
    return bool(masks) or not func.overloadpacket.__name__.startswith("index")


def _operands(func: Any, args: Any) -> Iterator[tuple[Tensor, bool]]:
    """The tensors that an op is given, and whether it writes to each."""
    written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    positional, named = args
    given = dict(zip((a.name for a in func._schema.arguments), positional, strict=False)) | named
    for name, value in given.items():
        for tensor in _tensors(value):
            yield tensor, name in written


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def _memory(tensor: Tensor) -> Any:
    """What two tensors share that overlap."""
    return tensor.untyped_storage()._cdata
