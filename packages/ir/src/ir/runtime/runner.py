"""`ir.runner`: an artifact as a function of named columns, small enough to travel to any number of workers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ir import plugins
from ir.errors import ExportError
from ir.opened import Opened, Port
from ir.runtime import columns as _columns
from ir.runtime import cpus, sessions
from ir.runtime.sessions import Key, Packed
from ir.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ir.exported import Exported


@dataclass(frozen=True)
class FileRunner:
    """An artifact that runs over columns; made by `ir.runner`.

    It holds a path, or the artifact's bytes, and no session: pickle and cloudpickle take it to any process, which opens
    one session at its first call and shares it among all runners of this file. A call is safe in several threads.
    """

    path: str
    target: str | None = None
    threads: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    pad: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] | None = None
    plugins: tuple[str, ...] = ()
    packed: Packed | None = field(default=None, repr=False)
    digest: str = ""

    @property
    def program(self) -> Opened:
        """The artifact in its runtime, in this process."""
        plugins.load(self.plugins)
        return sessions.session(self._key, self.packed)

    @property
    def _key(self) -> Key:
        threads = self.threads or cpus.share(self.workers)
        if self.packed is not None:
            return Key(self.digest, self.target, threads)
        return Key(self.path, self.target, threads, sessions.stamp(Path(self.path)))

    def __call__(self, table: Any) -> Any:
        """Run the artifact over all rows of a table.

        Args:
            table: columns by name, a row for each example: a dict of arrays (numpy, torch or Arrow), an Arrow table or
                a pandas DataFrame. Columns that the artifact does not take are left alone.

        Returns:
            A column for each output by its name, in the form that the table had, with as many rows.

        Raises:
            ExportError: a column is missing or does not fit its input, or an output has no row for each of the input.
            RuntimeFailure: the runtime failed.

        Examples:
            >>> runner = ir.runner("model.onnx", batch_size=64)
            >>> runner({"x": torch.randn(100, 3)})["logits"].shape
            torch.Size([100, 2])
        """
        kind, results = _columns.kind_of(table), self.tensors(table)
        return _columns.table_of(results, kind)

    def tensors(self, table: Any) -> dict[str, Any]:
        """As a call, the results as torch tensors."""
        program = self.program
        given = self._given(program, _columns.named(table))
        rowed = [p.name for p in program.inputs if p.name not in self.constants]
        if not rowed:
            raise ExportError("an artifact without a column has no rows: leave one input out of constants=")
        rows = _columns.rows_of(given, rowed)
        chosen = self._chosen(program)
        parts = [
            self._part(program, given, rowed, chosen, piece, size)
            for piece, size in _pieces(rows, self._size(program, rowed), self.pad)
        ]
        import torch

        return {name: torch.cat([p[name] for p in parts]) if len(parts) > 1 else parts[0][name] for name in chosen}

    def _given(self, program: Opened, named: Mapping[str, Any]) -> dict[str, Any]:
        names = [p.name for p in program.inputs]
        if unknown := sorted({*self.columns, *self.constants} - {*names}):
            raise ExportError(f"{self.path} has no input {unknown[0]!r}: it takes {', '.join(names)}")
        found = {}
        for port in program.inputs:
            if port.name in self.constants:
                found[port.name] = _constant(self.constants[port.name], port)
                continue
            column = self.columns.get(port.name, port.name)
            if column not in named:
                there = ", ".join(named) or "none"
                raise ExportError(
                    f"{self.path} takes {', '.join(names)}, and there is no column {column!r} among {there:.200}: "
                    "columns={'input': 'column'} says where an input lies, constants= what is no column"
                )
            found[port.name] = _columns.tensor_of(named[column], port)
        return found

    def _chosen(self, program: Opened) -> dict[str, int]:
        places = {p.name: place for place, p in enumerate(program.outputs)}
        if unknown := [n for n in self.outputs or () if n not in places]:
            raise ExportError(f"{self.path} has no output {unknown[0]!r}: it gives {', '.join(places)}")
        return places if self.outputs is None else {column: places[n] for n, column in self.outputs.items()}

    def _size(self, program: Opened, rowed: Sequence[str]) -> tuple[int | None, bool]:
        """Rows for one run, None for all, and whether it takes no other number of them."""
        first = {p.name: p.shape[0] if p.shape else None for p in program.inputs if p.name in rowed}
        if len({*first.values()}) > 1 or None in first.values():
            said = ", ".join(f"{p.name} {p}" for p in program.inputs)
            raise ExportError(f"the inputs have no first dimension in common ({said}): name the others in constants=")
        fixed = next(iter(first.values()))
        if isinstance(fixed, int):
            if self.batch_size not in (None, fixed):
                raise ExportError(f"{self.path} takes {fixed} rows at a time, and batch_size is {self.batch_size}")
            return fixed, True
        return self.batch_size, False

    def _part(
        self,
        program: Opened,
        given: Mapping[str, Any],
        rowed: Sequence[str],
        chosen: Mapping[str, int],
        piece: slice,
        size: int,
    ) -> dict[str, Any]:
        rows = piece.stop - piece.start
        inputs = [_padded(t[piece], size) if n in rowed else t for n, t in given.items()]
        results = program(*inputs)
        found = {name: results[place] for name, place in chosen.items()}
        for name, tensor in found.items():
            if tensor.dim() == 0 or tensor.shape[0] != size:
                raise ExportError(
                    f"the output {name} has the sizes {list(tensor.shape)} for {size} rows: name those outputs that "
                    "have a row for each of the input in outputs="
                )
        return {name: tensor[:rows] for name, tensor in found.items()}

    @property
    def inputs(self) -> Sequence[Port]:
        """What the artifact takes; opens it."""
        return self.program.inputs

    @property
    def ports(self) -> Mapping[str, Port]:
        """Each column that a call returns, and what the artifact declares of it; opens the artifact."""
        program = self.program
        return {name: program.outputs[place] for name, place in self._chosen(program).items()}

    def close(self) -> None:
        """End the session of this process; another call opens it again."""
        sessions.close(self._key)

    def __enter__(self) -> FileRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pieces(rows: int, wanted: tuple[int | None, bool], pad: bool) -> Iterator[tuple[slice, int]]:
    """Rows from-to, and the number that they are made up to; none at all become one, for the sizes of the results."""
    size, fixed = wanted
    step = size or max(rows, 1)
    for start in range(0, max(rows, 1), step):
        end = min(start + step, rows)
        yield slice(start, end), step if fixed or (pad and size) else max(end - start, 1)


def _padded(tensor: Any, size: int) -> Any:
    """Rows up to a number of them: the last once more, which is a value that the model knows."""
    import torch

    missing = size - tensor.shape[0]
    if missing == 0:
        return tensor
    last = tensor[-1:] if tensor.shape[0] else torch.zeros(1, *tensor.shape[1:], dtype=tensor.dtype)
    return torch.cat([tensor, last.expand(missing, *last.shape[1:])])


def _constant(value: Any, port: Port) -> Any:
    import torch

    tensor = torch.as_tensor(value, dtype=getattr(torch, port.dtype.name))
    if tensor.dim() != len(port.shape) or any(isinstance(w, int) and w != s for w, s in zip(port.shape, tensor.shape)):
        raise ExportError(f"the constant {port.name} has the sizes {list(tensor.shape)}, and the file takes {port}")
    return tensor


def runner(
    source: str | os.PathLike[str] | Exported,
    *,
    target: str | None = None,
    threads: int | None = None,
    workers: int | None = None,
    batch_size: int | None = None,
    pad: bool = False,
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    outputs: Sequence[str] | Mapping[str, str] | None = None,
    ship: bool | None = None,
    plugins: Sequence[str] = (),
) -> FileRunner:
    """An artifact as a small picklable function from columns to columns, for workers of any engine.

    Nothing is opened here. Each process opens one session when it first calls, and takes as many threads as are its
    share of the CPUs: what its engine says (OMP_NUM_THREADS, as Ray and Spark set it), or all that the process may use
    divided by `workers`.

    Args:
        source: a file or directory that `ir.export` wrote, of any target, or the program that it returned.
        target: whose it is; by default the first installed target that knows the name.
        threads: for each process, in place of its share.
        workers: how many processes share a machine's CPUs, where no engine says so.
        batch_size: rows for one run at most; a file with a fixed number of rows has its own.
        pad: make the last rows up to `batch_size` with copies of the last, and leave out what they give: for runtimes
            that prepare themselves for each size anew.
        columns: the column for an input, {"pixels": "image"}; by default the one with the input's name.
        constants: inputs that are no columns, {"threshold": 0.5}, the same for every run.
        outputs: those that a call returns, all by default; or the column for each, {"output_0": "logits"}, as for a
            .pt2 file, which keeps no names of outputs.
        ship: True sends the artifact's bytes along, for workers that do not see the path; by default only those of a
            program that was never written to a file.
        plugins: modules with operators and handlers that each process imports before it opens the artifact.

    Returns:
        A runner; call it with a table.

    Raises:
        ExportError: there is no such file, or no installed target reads it.

    Examples:
        >>> import concurrent.futures
        >>> runner = ir.runner("model.onnx", workers=2, batch_size=64)
        >>> parts = [{"x": numpy.ones((5, 3), "float32")}, {"x": numpy.ones((7, 3), "float32")}]
        >>> with concurrent.futures.ThreadPoolExecutor(2) as pool:  # or processes, Ray's, Spark's and Dask's workers
        ...     [table["logits"].shape for table in pool.map(runner, parts)]
        [(5, 2), (7, 2)]
    """
    for name, number in (("threads", threads), ("workers", workers), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ValueError(f"{name}={number}: at least 1")
    path, packed = _source(source, target, ship)
    return FileRunner(
        path, target, threads, workers, batch_size, pad, dict(columns or {}), dict(constants or {}),
        _columns_of(outputs), tuple(plugins), packed,
        "" if packed is None else hashlib.sha256(packed.data).hexdigest(),
    )  # fmt: skip


def _columns_of(outputs: Sequence[str] | Mapping[str, str] | None) -> Mapping[str, str] | None:
    return outputs if outputs is None else dict(outputs if isinstance(outputs, Mapping) else zip(outputs, outputs))


def _source(source: Any, target: str | None, ship: bool | None) -> tuple[str, Packed | None]:
    from ir.opening import target_of

    place = source if isinstance(source, (str, os.PathLike)) else source.path
    if place is None:
        return _written(source)
    path = Path(place).absolute()
    target_of(path, target)
    return str(path), Packed.of(path, target) if ship else None


def _written(program: Exported) -> tuple[str, Packed]:
    """A program that has no file: written into a folder of its own for a moment, for its bytes."""
    name = f"model{program.target.suffix}"
    folder = TemporaryFolder("ir-runner")
    path = folder.path / name
    program.target.write(program.artifact, path)
    return name, Packed.of(path)
