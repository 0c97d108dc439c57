"""Archives in tract in turns: `python -m benchmarks.nnef_turns request.json`, in a process that tract may abort.

The request is {"archives": [path], "cases": [folder], "seconds"}; each folder holds inputs.npz and expected.npz. The
answer on standard output is {"errors": [the largest of each archive], "ms": [the fastest run of each on the first case,
in milliseconds of the processor]}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tract


def load(path: str) -> tuple[list[str], Any]:
    """An archive's inputs in order and its runnable."""
    model = tract.nnef().with_tract_extra().with_tract_transformers().load(path)
    return [model.input_name(i) for i in range(model.input_count())], model.into_runnable()


def feeds(names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """A case's inputs in an archive's order, by name where it kept the names."""
    return [inputs[n] for n in names] if set(names) == set(inputs) else list(inputs.values())


def error(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference over the largest value, over all results.

    Raises:
        ValueError: another number of results or another shape.
    """
    worst = 0.0
    for a, e in zip(actual, expected, strict=True):
        if a.shape != e.shape:
            raise ValueError(f"a result of shape {a.shape} where torch has {e.shape}")
        worst = max(worst, float(np.abs(a.astype("f8") - e).max() / max(np.abs(e).max(), 1e-30)))
    return worst


def read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    cases = [(read(Path(c) / "inputs.npz"), list(read(Path(c) / "expected.npz").values())) for c in request["cases"]]
    loaded = [load(path) for path in request["archives"]]
    errors = [
        max(error([r.to_numpy() for r in run.run(feeds(names, i))], e) for i, e in cases) for names, run in loaded
    ]
    calls = [(run, feeds(names, cases[0][0])) for names, run in loaded]
    fastest = [float("inf")] * len(calls)
    start, turn = time.perf_counter(), 0
    while calls and (turn < 10 or time.perf_counter() - start < request["seconds"]):
        order = range(len(calls)) if turn % 2 else range(len(calls) - 1, -1, -1)
        for i in order:
            run, inputs = calls[i]
            began = time.process_time()
            run.run(inputs)
            fastest[i] = min(fastest[i], time.process_time() - began)
        turn += 1
    print(json.dumps({"errors": errors, "ms": [t * 1e3 for t in fastest]}))


if __name__ == "__main__":
    main()
