"""Running NNEF in tract, in a child process that may die without taking the caller along.

    with load("model.nnef.tgz") as program:
        outputs = program({"x": x})

Programs share one process unless they are given their own `Worker`; when tract aborts, the call that did it
raises `TractCrash`, and every other program is loaded again, unasked, at its next call.
"""

from __future__ import annotations

import atexit
import functools
import json
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np

from ir.opened import Timed
from nnef_backend.errors import InputError, TractError
from nnef_backend.format import unpack
from nnef_backend.format.signature import Fact, signature, symbols
from nnef_backend.runtime.child import LIMIT, Child

NUMPY_NAMES = {"bool": "bool"} | {
    f"{letter}{bits}": f"{name}{bits}"
    for letter, name in (("f", "float"), ("i", "int"), ("u", "uint"))
    for bits in (8, 16, 32, 64)
}


# What loading may take unless it is said: a few words of text can ask tract for hours and for all memory. Measured:
# 0.4 s for 100 MB (1.6 s packed), and less than twice the bytes of the weights.
BASE_SECONDS, TEXT_A_SECOND, STORED_A_SECOND = 6.0, 10_000, 10_000_000
BASE_MEMORY, MEMORY_A_BYTE = 512 << 20, 4
Limit: TypeAlias = "float | Literal['auto'] | None"
Limits: TypeAlias = "tuple[Limit, float | None, Limit]"  # seconds for loading and for a call, bytes for either


class Program:
    """A model loaded in tract; call it with arrays by name, or `run` it with arrays in the graph's order.

    Attributes: `path`, `input_names`, `output_names`, `input_facts`, `output_facts`, `property_names` (of the
    metadata), `timeout` in seconds, for every call that gives none of its own (None: no limit), `memory`, the bytes
    that tract may take for a call beyond what it has (None: no limit), `sizes`, the dynamic dimensions that were fixed,
    and for one loaded to be streamed through `pulse`, the symbol and the length of a piece, and `delay`, in frames of
    the output; `transforms`, which were applied.
    """

    def __init__(
        self,
        worker: Worker,
        path: str | Path,
        timeout: Limit = "auto",
        pulse: tuple[str, int] | None = None,
        sizes: Mapping[str, int] | None = None,
        memory: Limit = "auto",
        transforms: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self._place = self.path.absolute()  # the worker is in the folder where it was started
        self.timeout = LIMIT if timeout == "auto" else timeout
        self.memory = None if memory == "auto" else memory and int(memory)
        text = unpack.checked(self.path)
        self._allowed = _allowed(self.path, len(text), timeout, memory)
        self.input_names, self.output_names = signature(text)
        self.input_facts: list[Fact] = []
        self.output_facts: list[Fact] = []
        self.property_names: list[str] = []
        self.pulse, self.transforms = pulse, tuple(transforms)
        self.sizes = {name: int(size) for name, size in (sizes or {}).items()}
        if unknown := sorted(self.sizes.keys() - set(symbols(text))):  # tract would leave them out without a word
            raise InputError(f"{path}: no dynamic dimension is called {', '.join(unknown)}; there are {symbols(text)}")
        self.delay = 0
        self.worker = worker
        self._order: list[int] = []
        self._generation = 0
        self.number = worker.number()
        self._closed = False
        self._finalizer = weakref.finalize(self, worker.drop, self.number)
        with worker.lock:
            self._load()

    def __call__(self, inputs: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, np.ndarray]:
        """Run on arrays by input name; what comes back is by output name.

        Raises:
            InputError: a name, dtype, rank or extent that the graph does not declare.
            TractError: tract failed; TractCrash where it died, TractTimeout where it took too long.
        """
        results = self.run(self.ordered(inputs), timeout=timeout)
        return dict(zip(self.output_names, results, strict=True))

    def run(self, inputs: Sequence[Any], *, timeout: float | None = None) -> list[np.ndarray]:
        """Run on arrays in the order of the graph's inputs; raises as a call does."""
        if self.pulse is not None:
            raise InputError(f"{self.path} was loaded to be fed piece by piece: open a Stream")
        arrays = self.checked(inputs)
        timeout = self.timeout if timeout is None else timeout
        with self.worker.lock:
            self.ensure()
            header = {"do": "run", "model": self.number, "memory": self.memory}
            return self.worker.request(header, arrays, self.path, "running", timeout)[1]

    def profile(self, inputs: Sequence[Any]) -> list[Timed]:
        """The time of each of tract's nodes in one run, by tract's own profile; raises as a call does."""
        arrays = self.checked(inputs)
        with self.worker.lock:
            self.ensure()
            header = {"do": "profile", "model": self.number, "memory": self.memory}
            said = self.worker.request(header, arrays, self.path, "running", self.timeout)[0]["profile"]
        nodes = [n for n in json.loads(said)["nodes"] if "secs_per_iter" in n]
        nodes.sort(key=lambda n: n["qualified_id"])
        return [Timed(n["node_name"], n["op_name"], n["secs_per_iter"]) for n in nodes]

    def ordered(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Arrays by name in the order of the graph's inputs; raises InputError for missing and unknown names."""
        missing = [name for name in self.input_names if name not in inputs]
        unknown = [name for name in inputs if name not in self.input_names]
        if missing or unknown:
            raise InputError(
                f"{self.path}: inputs missing: {missing}, unknown: {unknown}; there are {self.input_names}"
            )
        return [inputs[name] for name in self.input_names]

    def checked(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The arrays in tract's order, once they are known to be what the graph declares."""
        if self._closed:
            raise TractError(f"{self.path} is closed", model=str(self.path))
        arrays = [np.asarray(value) for value in inputs]
        self._check(arrays)
        return [arrays[place] for place in self._order]

    def ensure(self) -> None:
        """Load again if the process that held the program is gone."""
        if self._generation != self.worker.generation or not self.worker.alive:
            self._load()

    def close(self) -> None:
        """Let the worker forget the model; the worker itself stays."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> None:
        seconds, memory = self._allowed
        header = {
            "do": "load",
            "model": self.number,
            "path": str(self._place),
            "pulse": self.pulse,
            "sizes": self.sizes,
            "transforms": self.transforms,
        }
        answer, _ = self.worker.request({**header, "memory": memory}, [], self.path, "loading", seconds)
        # tract takes inputs in the order of the statements that declare them, whatever the graph's
        # parameters say.
        names = answer["names"]
        if self.transforms:  # which may have put inputs and outputs into the state of a stream
            self.input_names = [name for name in self.input_names if name in names]
            self.output_names = answer["results"]
        if sorted(names) != sorted(self.input_names):
            raise TractError(
                f"{self.path}: tract sees the inputs {names}, the graph {self.input_names}",
                model=str(self.path),
            )
        facts = dict(zip(names, answer["inputs"], strict=True))
        self._order = [self.input_names.index(name) for name in names]
        self.input_facts = [Fact.parse(facts[name]) for name in self.input_names]
        self.output_facts = [Fact.parse(text) for text in answer["outputs"]]
        self.property_names = answer["properties"]
        self.delay = answer["delay"]
        self._generation = self.worker.generation

    def _check(self, arrays: list[np.ndarray]) -> None:
        if len(arrays) != len(self.input_facts):
            raise InputError(f"{self.path} takes {len(self.input_facts)} inputs, not {len(arrays)}")
        bound: dict[str, int] = {}
        for name, fact, array in zip(self.input_names, self.input_facts, arrays, strict=True):
            wanted = NUMPY_NAMES.get(fact.dtype, fact.dtype)
            if array.dtype.name != wanted or array.ndim != len(fact.shape):
                raise InputError(
                    f"{self.path}: the input {name} is {wanted} of shape {list(fact.shape)}, "
                    f"not {array.dtype} of shape {list(array.shape)}"
                )
            for declared, extent in zip(fact.shape, array.shape, strict=True):
                if isinstance(declared, str) and declared.isidentifier():
                    declared = bound.setdefault(declared, extent)
                if isinstance(declared, int) and declared != extent:
                    raise InputError(
                        f"{self.path}: the input {name} has shape {list(array.shape)}, "
                        f"but {list(fact.shape)} is declared" + (f", with {bound}" if bound else "")
                    )
        for name, fact in zip(self.output_names, self.output_facts, strict=True):
            if fact.dtype == "tdim":
                raise TractError(
                    f"{self.path}: the output {name} is a dimension (tdim), which tract cannot hand out; "
                    f"end it with tract_core_cast(..., to = 'i64')",
                    model=str(self.path),
                )


def _allowed(path: Path, text: int, timeout: Limit, memory: Limit) -> tuple[float | None, int | None]:
    """Seconds and bytes that loading an artifact may take, by its size unless they are given."""
    stored = unpack.stored(path)
    seconds = BASE_SECONDS + text / TEXT_A_SECOND + stored / STORED_A_SECOND if timeout == "auto" else timeout
    extent = BASE_MEMORY + MEMORY_A_BYTE * stored if memory == "auto" else memory
    return seconds, None if extent is None else int(extent)


class Worker(Child):
    """The child process of tract, in which programs are loaded."""

    def load(
        self,
        path: str | Path,
        *,
        timeout: Limit = "auto",
        memory: Limit = "auto",
        pulse: int | None = None,
        symbol: str | None = None,
        sizes: Mapping[str, int] | None = None,
        transforms: Sequence[str] = (),
    ) -> Program:
        """Load a directory, .tar or .tgz; the options are those of the function `load`.

        Raises:
            DocumentError: the artifact holds no readable graph.nnef.
            TractError: tract refused it; TractCrash where it died, TractTimeout where it took too long.
            OSError: the artifact cannot be read.
        """
        if (pulse is None) is not (symbol is None):
            raise InputError(f"{path}: pulse and symbol go together, as pulse=4, symbol='T'")
        piece = None if pulse is None or symbol is None else (symbol, int(pulse))
        return Program(self, path, timeout, piece, sizes, memory, transforms)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@functools.cache
def shared_worker() -> Worker:
    """The worker of this process."""
    worker = Worker()
    atexit.register(worker.close)
    return worker


def load(
    path: str | Path,
    *,
    worker: Worker | None = None,
    timeout: Limit = "auto",
    memory: Limit = "auto",
    pulse: int | None = None,
    symbol: str | None = None,
    sizes: Mapping[str, int] | None = None,
    transforms: Sequence[str] = (),
) -> Program:
    """Load an artifact in tract, in the shared worker unless another is given; raises as `Worker.load`.

    `timeout` is the time in seconds that tract may take to load it, and for each call; `memory` the bytes that it may
    take beyond what it has (on Linux), for the same. None is no limit. Unless they are given, loading has limits by the
    size of the artifact (6 s and 512 MB, and more for larger ones), a call has 600 s and the machine's memory.

    `sizes` fixes dynamic dimensions by their names; tract then computes as for a file of fixed sizes, which is several
    times as fast for convolutions by channels (depthwise).

    `transforms` are names of tract's own, applied in this order: "transformers_detect_all" puts the caches of a
    language model into the state of a `streaming.Stream`, so that tokens alone go in and out.

    With `pulse` the model is turned into one that takes so many frames of the dimension `symbol` at a time: see
    streaming.Stream. tract refuses models that look ahead without bound.
    """
    chosen = worker or shared_worker()
    return chosen.load(
        path, timeout=timeout, memory=memory, pulse=pulse, symbol=symbol, sizes=sizes, transforms=transforms
    )
