"""Models fed piece by piece: tract's pulse, with the state in the child process.

    program = load("model.nnef.tgz", pulse=4, symbol="T")
    with Stream(program) as stream:
        for chunk in chunks:                      # 4 frames of T at a time
            outputs = stream.run([chunk])

The first `program.delay` frames of the output come before the first of the model's own; as many frames of anything
as the delay stands for bring out the last.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from nnef_backend.errors import InputError, TractError
from nnef_backend.runtime.tract import Program


class Stream:
    """One stream through a program: it keeps what the model remembers between pieces. Programs may have many.

    Raises:
        InputError: the program was loaded without `pulse` and without transforms.
        TractError: as a call of the program.
    """

    def __init__(self, program: Program) -> None:
        if program.pulse is None and not program.transforms:
            raise InputError(f"{program.path} was loaded whole: give load(.., pulse=, symbol=) to stream through it")
        self.program = program
        self._number = program.worker.number()
        self._finalizer = weakref.finalize(self, program.worker.drop, self._number)
        with program.worker.lock:
            program.ensure()
            self._generation = program.worker.generation
            header = {"do": "open", "model": program.number, "stream": self._number}
            program.worker.request(header, [], program.path, "opening a stream through", program.timeout)

    def run(self, inputs: Sequence[Any], *, timeout: float | None = None) -> list[np.ndarray]:
        """The outputs for the next piece of every input, in the graph's order.

        Raises:
            InputError: a piece of another length, or of another element type.
            TractError: tract failed, or its process ended since the last piece, and what the stream knew with it.
        """
        program = self.program
        arrays = program.checked(inputs)
        with program.worker.lock:
            if self._generation != program.worker.generation or not program.worker.alive:
                raise TractError(
                    f"{program.path}: the process that held this stream is gone; open another and begin anew",
                    model=str(program.path),
                )
            header = {"do": "run", "model": program.number, "stream": self._number, "memory": program.memory}
            timeout = program.timeout if timeout is None else timeout
            return program.worker.request(header, arrays, program.path, "running", timeout)[1]

    def __call__(self, inputs: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, np.ndarray]:
        """As `run`, by name."""
        results = self.run(self.program.ordered(inputs), timeout=timeout)
        return dict(zip(self.program.output_names, results, strict=True))

    def close(self) -> None:
        """Forget what the stream knew."""
        self._finalizer()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
