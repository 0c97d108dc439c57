"""The process in which tract runs, and the frames in which it is talked to.

tract aborts its process on a panic, so that it never runs in the caller's. This file is started as a script:
it imports numpy and tract alone, neither torch nor the package around it, and so it is up in a tenth of a
second.

A frame is a length, a JSON header, and the raw bytes of the arrays that the header describes; nothing is ever
unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

LENGTH = struct.Struct("<Q")
DTYPES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]
)
PIPE_BYTES = 1 << 20
MAX_HEADER = 1 << 26


def check(arrays: list[np.ndarray]) -> None:
    """Raise TypeError for a dtype that tract has not."""
    for array in arrays:
        if array.dtype.name not in DTYPES:
            raise TypeError(f"arrays of {array.dtype} cannot be passed to tract")


def write_frame(stream: IO[bytes], header: dict[str, Any], arrays: list[np.ndarray]) -> None:
    """Send a header and arrays (any layout, native byte order).

    Raises:
        TypeError: a dtype that tract has not; nothing was sent.
        OSError: the other side is gone.
    """
    check(arrays)
    arrays = [array if array.flags.c_contiguous else np.array(array, order="C") for array in arrays]
    described = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
    head = json.dumps({**header, "arrays": described}).encode()
    stream.write(LENGTH.pack(len(head)) + head)
    for array in arrays:
        if array.size:
            stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Receive what `write_frame` sent.

    Raises:
        EOFError: the other side is gone.
        ValueError: what arrives is no frame.
    """
    (length,) = LENGTH.unpack(_read(stream, LENGTH.size))
    if length > MAX_HEADER:
        raise ValueError("no frame")
    header = json.loads(_read(stream, length))
    arrays = []
    for described in header.pop("arrays"):
        if described["dtype"] not in DTYPES:
            raise ValueError(f"no frame holds {described['dtype']}")
        array = np.empty(described["shape"], described["dtype"])
        if array.size:
            _fill(stream, array.reshape(-1).view(np.uint8).data)
        arrays.append(array)
    return header, arrays


def _read(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: IO[bytes], view: memoryview) -> None:
    while view:
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the other side is gone")
        view = view[count:]


def widen(descriptor: int) -> None:
    """Give a pipe a large buffer where the system has that: big tensors then travel in few switches."""
    try:
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


@contextlib.contextmanager
def bounded(memory: int | None) -> Iterator[None]:
    """In the block this process may take so many bytes more than it has; past that it ends. None is no limit.

    Where the system has no limit of this kind (other than Linux), there is none.
    """
    used = _data_bytes()
    if memory is None or used is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + memory
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def bound_to_machine() -> None:
    """Let this process take what memory the machine has, and no more: beyond it the system ends any process.

    Where the system has no limit of this kind (other than Linux), there is none.
    """
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if sys.platform == "linux" and not 0 <= soft <= whole:
            resource.setrlimit(resource.RLIMIT_DATA, (whole, hard))
    except (ImportError, ValueError, OSError):
        pass


def _data_bytes() -> int | None:
    """What counts against RLIMIT_DATA by now."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return None


class Models:
    """The models this process holds, by the number that its owner gave them."""

    def __init__(self) -> None:
        import tract

        self._tract = tract
        self._runnables: dict[int, Any] = {}
        self._states: dict[int, Any] = {}  # of streams, by numbers from the same count

    def handle(self, request: dict[str, Any], arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Do one request; an exception is the answer "failed"."""
        for number in request.get("drop", ()):
            self._runnables.pop(number, None)
            self._states.pop(number, None)
        with bounded(request.get("memory")):
            return self._done(request, arrays)

    def _done(self, request: dict[str, Any], arrays: list[np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
        match request["do"]:
            case "load":
                return self._load(request), []
            case "open":
                self._states[request["stream"]] = self._runnables[request["model"]].spawn_state()
                return {}, []
            case "run":
                held = self._states[request["stream"]] if "stream" in request else self._runnables[request["model"]]
                outputs = held.run(arrays)
                return {}, [output.to_numpy() for output in outputs]
            case "profile":
                return {"profile": self._runnables[request["model"]].profile_json(arrays)}, []
            case "ping":
                return {"models": sorted(self._runnables)}, []
        raise ValueError(f"unknown request {request['do']!r}")

    def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        pulse, sizes = request.get("pulse"), request.get("sizes")
        loader = self._tract.nnef()
        for extension in ("with_tract_extra", "with_tract_transformers", "with_onnx", "with_pulse"):
            loader = getattr(loader, extension, lambda loader=loader: loader)()
        model = loader.load(request["path"])
        if sizes:
            model.transform(self._tract.SetSymbols(sizes))
        for transform in request.get("transforms", ()):
            model.transform(transform)
        if pulse:
            model.transform(self._tract.Pulse(pulse[1], symbol=pulse[0]))
        facts = {
            "names": [model.input_name(number) for number in range(model.input_count())],
            "inputs": [fact.dump() for fact in model.input_facts()],
            "outputs": [fact.dump() for fact in model.output_facts()],
            "results": [model.output_name(number) for number in range(model.output_count())],
            "properties": sorted(k for k in model.property_keys() if not k.startswith(("tract_", "pulse."))),
            "delay": int(model.property("pulse.delay").to_numpy()[0]) if pulse else 0,
        }
        self._runnables[request["model"]] = model.into_runnable()
        return facts


def _die_with(parent: int) -> None:
    """End this process once its parent is gone: tract may be busy for good and never read that its input ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Answer requests from standard input until it ends."""
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    bound_to_machine()
    requests = os.fdopen(os.dup(0), "rb", buffering=PIPE_BYTES)
    answers = os.fdopen(os.dup(1), "wb", buffering=PIPE_BYTES)
    # Whatever else writes to standard output must not get between the frames.
    os.dup2(2, 1)
    models = Models()
    write_frame(answers, {"ready": True}, [])
    while True:
        try:
            request, arrays = read_frame(requests)
        except EOFError:
            return
        try:
            answer, results = models.handle(request, arrays)
            write_frame(answers, {"ok": True, "id": request["id"], **answer}, results)
        except Exception as error:
            write_frame(answers, {"ok": False, "id": request["id"], "error": f"{error}" or type(error).__name__}, [])


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):  # Python 3.10: `import tract` would find the file beside this one
        sys.path.pop(0)
    main()
