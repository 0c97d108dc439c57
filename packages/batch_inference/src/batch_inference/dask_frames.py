"""Dask: the partitions of a DataFrame, one session for each of its worker processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir.runtime.runner import FileRunner


def map_partitions(frame: Any, runner: FileRunner) -> Any:
    """A DataFrame with the columns of the results beside its own.

    Dask computes the partitions of a worker that dies again on another. Workers are processes with as many threads of
    Dask's as there are partitions at a time; their sessions share the CPUs by `ir.runner(..., workers=)`.

    Args:
        frame: a dask.dataframe.DataFrame with a column for each input of the artifact.
        runner: what `ir.runner` gave; its path is one that the workers see, or it was made with ship=True, and goes to
            each worker once. It is opened here once, for the types of the results.

    Returns:
        A dask.dataframe.DataFrame; nothing runs until it is computed.

    Examples:
        >>> found = map_partitions(images, ir.runner("model.onnx", workers=4))  # doctest: +SKIP
        >>> found.to_parquet("results")  # doctest: +SKIP
    """
    from dask import delayed

    meta = frame._meta.copy()
    for name, port in runner.ports.items():
        wide = "float32" if port.dtype.name == "bfloat16" else port.dtype.name
        meta[name] = np.empty(0, wide if len(port.shape) == 1 else object)
    return frame.map_partitions(_joined, delayed(runner, pure=True), meta=meta)


def _joined(part: Any, runner: FileRunner) -> Any:
    return part.join(runner(part).set_axis(part.index)) if len(part) else part.assign(**_empty(runner))


def _empty(runner: FileRunner) -> dict[str, Any]:
    return {name: np.empty(0, object if len(p.shape) > 1 else p.dtype.name) for name, p in runner.ports.items()}
