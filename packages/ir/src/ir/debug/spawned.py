"""A process that is started anew and does what it is asked, where the system cannot fork."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from ir import plugins
from ir.debug.search import Verdict
from ir.errors import ExportError
from ir.importer.bodies import Bodies
from ir.registry import Registry, registry

# the folder of this process goes off the path before anything is imported: what lies there was not asked for
_SERVE = "import sys; sys.path[:] = filter(None, sys.path); from ir.debug import spawned; spawned.serve()"
_START = 300.0  # seconds that the process may take to import torch and read what is shared


class Worker:
    """The process, seen from here."""

    def __init__(self, shared: Sequence[Any]) -> None:
        self._shared = shared
        first = _packed(shared, ())
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        ready = self._exchange(first, _START)
        if ready is not None:
            self.end()
            raise ExportError(f"the process for trials does not start: {ready.text}")

    @property
    def lives(self) -> bool:
        """Whether it can be asked again."""
        return self.process.poll() is None

    def ask(self, seconds: float, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn` returns there, or the Verdict of its crash, its hang or its exception; after the first two the
        process is gone."""
        return self._exchange(_packed((fn, args), self._shared), seconds)

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def _exchange(self, message: bytes, seconds: float) -> Any:
        assert self.process.stdin is not None
        try:
            _send(self.process.stdin, message)
            answer = self._answers.get(timeout=seconds)
        except OSError:
            answer = b""
        except queue.Empty:
            self.end()
            return Verdict.hang(seconds)
        return pickle.loads(answer) if answer else Verdict.crash(self.process.wait())

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while answer := _received(self.process.stdout):
            self._answers.put(answer)
        self._answers.put(b"")

    def __del__(self) -> None:
        if hasattr(self, "process"):
            self.end()


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(struct.pack("<Q", len(message)) + message)
    stream.flush()


def _received(stream: IO[bytes]) -> bytes:
    """The next message; empty at the end of the stream."""
    head = stream.read(8)
    return stream.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""


# -- what is sent ------------------------------------------------------------------------------------------------------


def _packed(what: Any, shared: Sequence[Any]) -> bytes:
    """`what` pickled, the place of each of `shared` in its stead.

    Raises:
        ExportError: something in it has no name by which another process finds it.
    """
    stream = io.BytesIO()
    try:
        _Pickler(stream, shared).dump(what)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ExportError(
            f"this system starts processes for trials anew, and they cannot be sent everything: {error}; "
            "handlers have to be functions of a module that can be imported, not local ones"
        ) from error
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: IO[bytes], shared: Sequence[Any]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._places = {id(x): i for i, x in enumerate(shared)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._places.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Registries by the names of what is in them; traced bodies are traced anew."""
        if isinstance(obj, Registry):
            return _registry, (obj.target, *_registered(obj))
        return (Bodies, (obj.symbols,)) if isinstance(obj, Bodies) else NotImplemented


def _registered(known: Registry) -> tuple[list[str], list[str], dict[str, Any]]:
    """The modules of plugins, those that registered handlers as they were imported, and this call's own handlers."""
    handlers = [h for hs in known.entries.values() for h in hs]
    found = [h.source for h in handlers if h.layer == "plugin"]
    own = {h.op: h.fn for h in handlers if h.layer == "call"}
    modules = [m for h in handlers if h.layer == "runtime" and (m := getattr(h.fn, "__module__", None))]
    return list(dict.fromkeys(found)), list(dict.fromkeys(modules)), own


def _registry(target: str, explicit: list[str], modules: list[str], own: Mapping[str, Any]) -> Registry:
    known = plugins.find_target(target, {}).registry if target in plugins.targets() else registry(target)
    plugins.load(explicit, strict=True)
    for name in modules:
        importlib.import_module(name)
    return known.with_handlers(own)


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: bytes, shared: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(message))
        self._shared = shared

    def persistent_load(self, place: Any) -> Any:
        return self._shared[place]


def _answer(message: bytes, shared: Sequence[Any]) -> Any:
    try:
        fn, args = _Unpickler(message, shared).load()
        return fn(*args)
    except Exception as error:
        return Verdict("error", type(error).__name__, str(error))


def _shared_of(message: bytes) -> tuple[Sequence[Any], Verdict | None]:
    try:
        shared: Sequence[Any] = _Unpickler(message, ()).load()
    except Exception as error:
        return (), Verdict("error", type(error).__name__, f"{type(error).__name__}: {error}")
    return shared, None


def serve() -> None:
    """The process itself: what is shared, then one message after the other."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what runtimes print is no answer
    shared, failed = _shared_of(_received(sys.stdin.buffer))
    _send(answers, pickle.dumps(failed))
    while message := _received(sys.stdin.buffer):
        _send(answers, pickle.dumps(_answer(message, shared)))
