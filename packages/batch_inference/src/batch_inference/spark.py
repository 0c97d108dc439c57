"""Spark: a function of columns for `DataFrame.select`, one session for each of Spark's Python workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir.errors import ExportError
from ir.opened import Port
from ir.runtime.runner import FileRunner

_SQL = {"float32": "FloatType", "float16": "FloatType", "bfloat16": "FloatType", "float64": "DoubleType",
        "int8": "ByteType", "uint8": "ShortType", "int16": "ShortType", "int32": "IntegerType", "int64": "LongType",
        "bool": "BooleanType"}  # fmt: skip


def predict_udf(
    runner: FileRunner,
    *,
    batch_size: int = 1024,
    return_type: Any = None,
    row_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """A function of columns, in the order of the artifact's inputs, to a struct with a field for each output.

    Spark runs the task of a worker that dies again, with all of its rows. It says by `spark.task.cpus` how many threads
    a session computes with.

    Args:
        runner: what `ir.runner` gave; its path is one that the workers see, or it was made with ship=True.
        batch_size: rows that Spark hands over at a time; the runner splits them further by a batch_size of its own.
        return_type: a pyspark.sql.types.StructType with a field for each output; by default by what the artifact
            declares, for which it is opened once here. A row of more than one dimension is a flat array.
        row_shapes: the sizes of a row of those inputs that the artifact declares as dynamic, {"ids": [128]}. Columns
            are flat arrays, and take the input's sizes.

    Raises:
        ExportError: such an input without its sizes.

    Example:
        >>> predict = predict_udf(ir.runner("model.onnx"))  # doctest: +SKIP
        >>> images.select("id", predict("image").alias("found")).select("id", "found.*")  # doctest: +SKIP
    """
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import StructField, StructType

    def make() -> Callable[..., Mapping[str, Any]]:
        names = [runner.columns.get(p.name, p.name) for p in runner.inputs if p.name not in runner.constants]

        def predict(*columns: Any) -> Mapping[str, Any]:
            found = runner(dict(zip(names, columns, strict=True)))
            return {n: a.reshape(len(a), -1) if a.ndim > 1 else a for n, a in found.items()}

        kind = inspect.Parameter.POSITIONAL_ONLY  # Spark counts them, to tell columns from the elements of one
        signature = inspect.Signature([inspect.Parameter(f"column_{i}", kind) for i in range(len(names))])
        predict.__signature__ = signature  # type: ignore[attr-defined]
        return predict

    rowed = [p for p in runner.inputs if p.name not in runner.constants]
    shapes = [_row_shape(p, (row_shapes or {}).get(p.name)) for p in rowed]
    fields = return_type or StructType([StructField(n, _field(p)) for n, p in runner.ports.items()])
    return predict_batch_udf(make, return_type=fields, batch_size=batch_size, input_tensor_shapes=shapes)


def _row_shape(port: Port, said: Sequence[int] | None) -> list[int] | None:
    sizes = list(said or port.shape[1:])
    fixed = [s for s in sizes if isinstance(s, int)]
    if len(fixed) < len(sizes):
        raise ExportError(f"a row of {port.name} has dynamic sizes ({port}): give row_shapes={{{port.name!r}: [...]}}")
    return fixed or None


def _field(port: Port) -> Any:
    from pyspark.sql import types

    element = getattr(types, _SQL[port.dtype.name])()
    return element if len(port.shape) == 1 else types.ArrayType(element)
