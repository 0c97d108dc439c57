"""Named columns of a table as tensors, one row for each example, and back: numpy, torch, Arrow and pandas.

Arrow and pandas are looked for only where somebody else has imported them: a column of theirs cannot come before that.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ir.errors import ExportError
from ir.helper import numpy_dtype
from ir.opened import Port

KINDS = ("numpy", "torch", "arrow", "pandas")


def _of(value: Any, module: str, *names: str) -> bool:
    """Whether a value is an instance of one of these classes, which nobody can have made without the module."""
    found = sys.modules.get(module)
    return found is not None and isinstance(value, tuple(getattr(found, n) for n in names))


def kind_of(table: Any) -> str:
    """In what form a table of columns came, which is how its results go back."""
    if _of(table, "pyarrow", "Table", "RecordBatch"):
        return "arrow"
    if _of(table, "pandas", "DataFrame"):
        return "pandas"
    values = list(table.values()) if isinstance(table, Mapping) else []
    if values and all(_of(v, "torch", "Tensor") for v in values):
        return "torch"
    if values and all(_of(v, "pyarrow", "Array", "ChunkedArray") for v in values):
        return "arrow"
    return "numpy"


def named(table: Any) -> Mapping[str, Any]:
    """The columns by name, none of them converted.

    Raises:
        ExportError: it is no table of named columns.
    """
    if _of(table, "pyarrow", "Table", "RecordBatch"):
        return {name: table.column(place) for place, name in enumerate(table.schema.names)}
    if isinstance(table, Mapping):
        return table
    if _of(table, "pandas", "DataFrame"):
        return {str(name): table[name] for name in table.columns}
    raise ExportError(
        f"a {type(table).__name__} is no table of named columns: give a dict of arrays, an Arrow table or a DataFrame"
    )


def tensor_of(column: Any, port: Port) -> Any:
    """A column as a torch tensor with the type and the trailing sizes of an input.

    Element types are widened where every value stays what it is (int32 to int64), rows that lie flat take the input's
    sizes (3072 numbers for [batch, 3, 32, 32]), and rows of bytes are the numbers of the input's type themselves.

    Raises:
        ExportError: rows of different lengths, missing values, another type, or sizes that do not fit.
    """
    import torch

    wanted: torch.dtype = getattr(torch, port.dtype.name)
    tensor = column.detach() if _of(column, "torch", "Tensor") else _from_numpy(_array(column, port))
    if tensor.dtype is not wanted:
        if not _keeps_values(tensor.dtype, wanted):
            given = str(tensor.dtype).removeprefix("torch.")
            raise ExportError(f"the column for {port.name} holds {given}, and the file takes {port}: convert it before")
        tensor = tensor.to(wanted)
    return _shaped(tensor, port)


def _keeps_values(given: Any, wanted: Any) -> bool:
    import torch

    exact = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
    if given is torch.bool:
        return True
    if given.is_floating_point or given.is_complex:
        return bool(torch.promote_types(given, wanted) is wanted)
    if wanted.is_floating_point:
        return bool(torch.iinfo(given).bits <= exact.get(wanted, 0))
    if wanted is torch.bool or wanted.is_complex:
        return False
    return torch.iinfo(wanted).min <= torch.iinfo(given).min and torch.iinfo(given).max <= torch.iinfo(wanted).max


def _shaped(tensor: Any, port: Port) -> Any:
    wanted, given = port.shape[1:], tuple(tensor.shape[1:])
    fits = len(wanted) == len(given) and all(not isinstance(w, int) or w == g for w, g in zip(wanted, given))
    if fits and tensor.dim():
        return tensor
    sizes = [w for w in wanted if isinstance(w, int)]
    if tensor.dim() == 2 and len(sizes) == len(wanted) and np.prod(sizes, dtype=int) == tensor.shape[1]:
        return tensor.reshape(tensor.shape[0], *sizes)
    if tensor.dim() == 1 and sizes == [1] * len(wanted):
        return tensor.reshape(-1, *sizes)
    raise ExportError(f"a row of the column for {port.name} has the sizes {list(given)}, and the file takes {port}")


def _from_numpy(array: np.ndarray) -> Any:
    import torch

    if array.dtype.name == "bfloat16":  # ml_dtypes'
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if not array.flags.writeable or not array.dtype.isnative or any(s < 0 for s in array.strides):
        array = np.array(array, array.dtype.newbyteorder("="))  # shared memory is read-only, and a tensor is not
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ExportError(f"torch has no tensors of {array.dtype}") from error


def _array(column: Any, port: Port) -> np.ndarray:
    try:
        is_arrow = _of(column, "pyarrow", "Array", "ChunkedArray")
        if (is_arrow or isinstance(column, list)) and len(column) == 0:
            return _of_nothing(port)
        if is_arrow:
            return _of_arrow_bytes(column, port) if _holds_bytes(column) else _of_arrow(column)
        array = np.asarray(column)
        return _stacked(array, port) if array.dtype == object else array
    except (ValueError, TypeError) as error:
        raise ExportError(f"the column for {port.name} is no array of numbers: {error}") from error


def _of_nothing(port: Port) -> np.ndarray:
    """A column of no rows, which says nothing of a row's sizes itself."""
    fixed = [s if isinstance(s, int) else 1 for s in port.shape[1:]]
    return np.zeros((0, *fixed), numpy_dtype(port.dtype))


def _stacked(array: np.ndarray, port: Port) -> np.ndarray:
    """One array of rows that are arrays or lists of their own, as pandas and Spark have them."""
    if len(array) == 0:
        return _of_nothing(port)
    if isinstance(array[0], bytes):
        return _numbers(b"".join(array), len(array), {len(row) for row in array}, port)
    rows = [np.stack(list(map(np.asarray, r))) if np.asarray(r).dtype == object else np.asarray(r) for r in array]
    return np.stack(rows)


def _holds_bytes(column: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(kind(column.type) for kind in kinds)


def _of_arrow_bytes(column: Any, port: Port) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise ValueError(f"{column.null_count} values are missing")
    lengths = pc.binary_length(column).unique().to_pylist()
    if len(lengths) != 1:
        return _numbers(b"", len(column), lengths, port)
    fixed = column.cast(pa.binary(lengths[0]))
    chunks = fixed.chunks if isinstance(fixed, pa.ChunkedArray) else [fixed]
    data = [memoryview(c.buffers()[1])[c.offset * lengths[0] :][: len(c) * lengths[0]] for c in chunks]
    return _numbers(data[0] if len(data) == 1 else b"".join(data), len(column), lengths, port)


def _numbers(data: Any, rows: int, lengths: Collection[int], port: Port) -> np.ndarray:
    """The bytes of all rows as numbers of the input's type, a flat row each."""
    kind = numpy_dtype(port.dtype)
    if len(lengths) > 1:
        raise ValueError(f"its rows have {min(lengths)} to {max(lengths)} bytes")
    if width := next(iter(lengths), 0) % kind.itemsize:
        raise ValueError(f"its rows end {width} bytes after a number of {kind.itemsize}")
    if kind.kind == "b":
        bits: np.ndarray = (np.frombuffer(data, np.uint8) != 0).reshape(rows, -1)
        return bits
    return np.frombuffer(data, kind).reshape(rows, -1)


def _of_arrow(column: Any) -> np.ndarray:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no chunk at all
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if column.null_count:
        raise ValueError(f"{column.null_count} values are missing")
    if isinstance(column, pa.FixedShapeTensorArray):  # whose to_numpy_ndarray forgets where a slice begins
        rows = _of_arrow(column.storage.flatten()).reshape(len(column), *column.type.shape)
        places = column.type.permutation or range(rows.ndim - 1)
        return rows.transpose(0, *(1 + place for place in places))
    if isinstance(column, pa.ExtensionArray):  # Ray's tensors, which know their own way
        column = column.to_numpy(zero_copy_only=False)
        return np.stack(list(column)) if column.dtype == object else np.asarray(column)
    if pa.types.is_nested(column.type):
        return _of_lists(column)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _of_lists(column: Any) -> np.ndarray:
    import pyarrow.compute as pc

    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        raise ValueError(f"it is a column of {column.type}")
    lengths = pc.list_value_length(column).unique().to_pylist()
    if len(lengths) > 1:
        raise ValueError(f"its rows have {min(lengths)} to {max(lengths)} elements")
    inner = _of_arrow(column.flatten())
    return inner.reshape(len(column), lengths[0] if lengths else 0, *inner.shape[1:])


# -- back --------------------------------------------------------------------------------------------------------------


def table_of(results: Mapping[str, Any], kind: str) -> Any:
    """Tensors by name as a table of this kind; numpy has no word for bfloat16, which is float32 there."""
    if kind == "torch":
        return dict(results)
    arrays = {name: _numpy(tensor) for name, tensor in results.items()}
    if kind == "numpy":
        return arrays
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame({n: a if a.ndim == 1 else list(a) for n, a in arrays.items()})
    import pyarrow as pa

    return pa.table({n: _arrow(a) for n, a in arrays.items()})


def _numpy(tensor: Any) -> np.ndarray:
    import torch

    wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    return np.asarray(wide.detach().cpu().resolve_conj().resolve_neg().numpy())


def _arrow(array: np.ndarray) -> Any:
    import pyarrow as pa

    if array.ndim == 1:
        return pa.array(array)
    if array.dtype == bool or 0 in array.shape or array.dtype.kind == "c":  # of which Arrow makes no tensors
        return (
            pa.array(array.tolist(), pa.list_(pa.from_numpy_dtype(array.dtype)))
            if array.ndim == 2
            else pa.array(array.tolist())
        )
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def rows_of(tensors: Mapping[str, Any], wanted: Sequence[str]) -> int:
    """The number of rows, which all columns have.

    Raises:
        ExportError: they differ.
    """
    counts = {name: int(tensors[name].shape[0]) for name in wanted}
    if len({*counts.values()}) > 1:
        said = ", ".join(f"{n} {c}" for n, c in counts.items())
        raise ExportError(f"the columns have different numbers of rows ({said})")
    return next(iter(counts.values()))
