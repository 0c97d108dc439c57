"""Spark: a function of columns for `DataFrame.select`, one session for each of Spark's Python workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir.errors import ExportError
from ir.opened import Port
from ir.runtime import columns as _columns
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
    a session computes with. From pyspark 4.1 on columns come as Arrow arrays, and a column may be binary, a row's
    numbers as bytes. Before that they come by `predict_batch_udf`.

    Args:
        runner: what `ir.runner` gave; its path is one that the workers see, or it was made with ship=True.
        batch_size: rows that Spark hands over at a time; the runner splits them further by a batch_size of its own.
        return_type: a pyspark.sql.types.StructType with a field for each output; by default by what the artifact
            declares, for which it is opened once here. A row of more than one dimension is a flat array.
        row_shapes: the sizes of a row of those inputs that the artifact declares as dynamic, {"ids": [128]}. Columns
            are flat arrays, and take the input's sizes.

    Raises:
        ExportError: such an input without its sizes.

    Examples:
        >>> predict = predict_udf(ir.runner("model.onnx"))  # doctest: +SKIP
        >>> images.select("id", predict("image").alias("found")).select("id", "found.*")  # doctest: +SKIP
    """
    from pyspark.sql.types import StructField, StructType

    rowed = [p for p in runner.inputs if p.name not in runner.constants]
    shapes = [_row_shape(p, (row_shapes or {}).get(p.name)) for p in rowed]
    names = [runner.columns.get(p.name, p.name) for p in rowed]
    fields = return_type or StructType([StructField(n, _field(p)) for n, p in runner.ports.items()])
    return (_arrow if _has_arrow_udf() else _pandas)(runner, names, shapes, fields, batch_size)


def _has_arrow_udf() -> bool:
    import pyspark.sql.functions

    return hasattr(pyspark.sql.functions, "arrow_udf")


def _arrow(
    runner: FileRunner, names: Sequence[str], shapes: Sequence[list[int] | None], fields: Any, batch_size: int
) -> Any:
    """A UDF from Arrow arrays to an Arrow struct: lists of numbers stay one array of numbers on their way."""
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type

    struct = to_arrow_type(fields)

    def predict(*columns: Any) -> Any:
        import pyarrow as pa

        parts = []
        for start in range(0, len(columns[0]), batch_size):
            pieces = (_rows(c.slice(start, batch_size), s) for c, s in zip(columns, shapes, strict=True))
            parts.append(_struct(runner.tensors(dict(zip(names, pieces, strict=True))), struct))
        return pa.concat_arrays(parts) if parts else pa.array([], struct)

    predict.__annotations__.clear()  # by hints Spark would guess the kind, which without any is this one
    return arrow_udf(predict, fields)


def _rows(column: Any, shape: list[int] | None) -> Any:
    """A column whose flat rows have these sizes; Arrow refuses rows of another length."""
    import pyarrow as pa

    if not shape or not hasattr(column.type, "value_type"):
        return column
    count = 1
    for size in shape:
        count *= size
    flat = column.cast(pa.list_(column.type.value_type, count))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(column.type.value_type, shape), flat)


def _struct(results: Mapping[str, Any], struct: Any) -> Any:
    """An Arrow struct of this type, in which a row of more than one number is a flat list."""
    import numpy as np
    import pyarrow as pa

    arrays = []
    for field, array in zip(struct, _columns.table_of(results, "numpy").values(), strict=True):
        flat = pa.array(array.ravel())
        if array.ndim > 1:
            offsets = np.arange(len(array) + 1, dtype=np.int32) * (array.size // len(array))
            flat = pa.ListArray.from_arrays(offsets, flat)
        arrays.append(flat.cast(field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(struct))


def _pandas(
    runner: FileRunner, names: Sequence[str], shapes: Sequence[list[int] | None], fields: Any, batch_size: int
) -> Any:
    """Spark's own UDF for batches of numpy arrays."""
    from pyspark.ml.functions import predict_batch_udf

    def make() -> Callable[..., Mapping[str, Any]]:
        def predict(*columns: Any) -> Mapping[str, Any]:
            found = runner(dict(zip(names, columns, strict=True)))
            return {n: a.reshape(len(a), -1) if a.ndim > 1 else a for n, a in found.items()}

        kind = inspect.Parameter.POSITIONAL_ONLY  # Spark counts them, to tell columns from the elements of one
        signature = inspect.Signature([inspect.Parameter(f"column_{i}", kind) for i in range(len(names))])
        predict.__signature__ = signature  # type: ignore[attr-defined]
        return predict

    return predict_batch_udf(make, return_type=fields, batch_size=batch_size, input_tensor_shapes=list(shapes))


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
