"""The child process that runs compiled modules: started by its path, so that it imports neither torch nor ir.

A request is a tuple, a method of `Programs` and its arguments; the answer is ("ok", results) or ("error",
text). Arrays are of numpy's own types, each with the name of its element type.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

WORDS = {"bool": "BOOL_8", "bfloat16": "BFLOAT_16", **{f"float{b}": f"FLOAT_{b}" for b in (16, 32, 64)}}
WORDS |= {f"{'u' * u}int{b}": f"{'U' if u else 'S'}INT_{b}" for u in (0, 1) for b in (8, 16, 32, 64)}
Arrays = list[np.ndarray]
Given = tuple[np.ndarray, str]  # with the name of its element type


class Programs:
    """The modules that this process has loaded, by number."""

    def __init__(self) -> None:
        import iree.runtime as runtime

        self.rt = runtime
        self.device = runtime.get_device("local-sync")
        self.instance = runtime.VmInstance()
        self.loaded: dict[int, Any] = {}

    def load(self, number: int, path: str, archive: str | None) -> None:
        """A .vmfb with the parameters of its archive, unless it is there."""
        if number in self.loaded:
            return
        rt = self.rt
        modules = [rt.create_hal_module(self.instance, self.device)]
        if archive is not None:
            index = rt.ParameterIndex()
            index.load(archive)
            modules.append(rt.create_io_parameters_module(self.instance, index.create_provider(scope="model")))
        modules.append(rt.VmModule.mmap(self.instance, path))
        self.loaded[number] = rt.VmContext(self.instance, modules), modules[-1].lookup_function("main")

    def run(self, number: int, path: str, archive: str | None, inputs: Sequence[Given], kinds: Sequence[str]) -> Arrays:
        """The results of one call, as arrays of these types."""
        self.load(number, path, archive)
        context, function = self.loaded[number]
        given, results = self.rt.VmVariantList(len(inputs)), self.rt.VmVariantList(len(kinds))
        for array, word in inputs:
            given.push_ref(self._view(array, word))
        context.invoke(function, given, results)
        views = [results.get_as_object(i, self.rt.HalBufferView) for i in range(len(kinds))]
        return [_array(v, np.dtype(k)) for v, k in zip(views, kinds)]

    def describe(self, number: int, path: str, archive: str | None) -> dict[str, str]:
        """What a module's main function says of itself."""
        self.load(number, path, archive)
        return dict(self.loaded[number][1].reflection)

    def drop(self, number: int) -> None:
        """Forget a module."""
        self.loaded.pop(number, None)

    def _view(self, array: np.ndarray, word: str) -> Any:
        rt = self.rt
        kind = getattr(rt.HalElementType, WORDS[word])
        where, usage = rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
        flat = array.reshape(-1) if array.size else np.zeros(1, array.dtype)  # a buffer is never empty, a view may be
        buffer = self.device.allocator.allocate_buffer_copy(where, usage, self.device, flat)
        return rt.HalBufferView(buffer, list(array.shape), int(kind))


def _array(view: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """A result, copied out of the device's memory."""
    if 0 in view.shape:
        return np.empty(view.shape, dtype)
    return np.array(view.map().asarray(view.shape, dtype))


def serve(pipe: Connection) -> None:
    """Answer requests until the other end is gone."""
    programs = Programs()
    while True:
        try:
            word, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("ok", getattr(programs, word)(*arguments))
        except Exception as error:
            answer = ("error", f"{type(error).__name__}: {error}")
        pipe.send(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
