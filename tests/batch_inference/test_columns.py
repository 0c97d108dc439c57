"""Columns of Arrow and pandas, and cloudpickle."""

from __future__ import annotations

import numpy as np
import pytest

import ir
from tests.batch_inference import workers

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
cloudpickle = pytest.importorskip("cloudpickle")


def tables():
    t = workers.table(9)
    flat = t["image"].reshape(9, -1)
    fixed = pa.FixedShapeTensorArray.from_numpy_ndarray(t["image"])
    yield "tensors", pa.table({"image": fixed, "weight": t["weight"]})
    inner = pa.array(np.append(np.zeros(flat.shape[1], np.float32), flat.ravel()))[flat.shape[1] :]  # begins later
    lists = pa.FixedSizeListArray.from_arrays(inner, flat.shape[1])
    cut = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), t["image"].shape[1:]), lists)
    yield "tensors of a slice", pa.table({"image": cut, "weight": t["weight"]})
    last = pa.fixed_shape_tensor(pa.float32(), (8, 8, 3), permutation=[2, 0, 1])  # channels last in memory
    across = pa.FixedSizeListArray.from_arrays(pa.array(t["image"].transpose(0, 2, 3, 1).ravel()), flat.shape[1])
    yield (
        "tensors with channels last",
        pa.table({"image": pa.ExtensionArray.from_storage(last, across), "weight": t["weight"]}),
    )
    yield "flat lists", pa.table({"image": list(flat), "weight": t["weight"]})
    yield (
        "fixed lists",
        pa.table({"image": pa.FixedSizeListArray.from_arrays(flat.ravel(), flat.shape[1]), "weight": t["weight"]}),
    )
    yield "nested lists", pa.table({"image": t["image"].tolist(), "weight": t["weight"]}, schema=pa.schema({
        "image": pa.list_(pa.list_(pa.list_(pa.float32()))), "weight": pa.float32()}))  # fmt: skip
    yield (
        "chunks",
        pa.concat_tables(
            [pa.table({"image": list(flat[i : i + 4]), "weight": t["weight"][i : i + 4]}) for i in (0, 4, 8)]
        ),
    )
    yield (
        "a batch of records",
        pa.RecordBatch.from_arrays([pa.array(list(flat)), pa.array(t["weight"])], ["image", "weight"]),
    )
    raw = [row.tobytes() for row in flat]
    yield "bytes", pa.table({"image": pa.array(raw, pa.binary()), "weight": t["weight"]})
    yield "large bytes", pa.table({"image": pa.array(raw, pa.large_binary()), "weight": t["weight"]})
    yield "bytes, a slice", pa.table({"image": pa.array(raw[:1] + raw, pa.binary()).slice(1), "weight": t["weight"]})
    yield "chunks of bytes", pa.table({"image": pa.chunked_array([raw[:4], raw[4:]]), "weight": t["weight"]})
    yield "pandas, bytes", pd.DataFrame({"image": raw, "weight": t["weight"]})
    yield "arrays by name", {"image": pa.array(list(flat)), "weight": pa.array(t["weight"])}
    yield "pandas", pd.DataFrame({"image": list(t["image"]), "weight": t["weight"]})


@pytest.mark.parametrize(("name", "table"), tables(), ids=lambda x: x if isinstance(x, str) else "")
def test_equal_to_numpy(files, name, table):
    runner = workers.runner(files["onnx"])
    wanted, found = runner(workers.table(9)), runner(table)
    if name.startswith("pandas"):
        assert isinstance(found, pd.DataFrame)
        found = {n: np.stack(list(found[n])) for n in found}
    else:
        assert isinstance(found, pa.Table)
        scores = found["scores"].combine_chunks()
        found = {"scores": scores.to_numpy_ndarray(), "total": found["total"].to_numpy()}
    for n in wanted:
        np.testing.assert_array_equal(found[n], wanted[n])


def test_missing_values_are_refused(files):
    table = pa.table(
        {"image": list(workers.table(2)["image"].reshape(2, -1)), "weight": pa.array([1.0, None], pa.float32())}
    )
    with pytest.raises(ir.ExportError, match="the column for weight is no array of numbers: 1 values are missing"):
        workers.runner(files["onnx"])(table)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [([b"1234", b"12345678"], "have 4 to 8 bytes"), ([b"123456"] * 2, "2 bytes after a number of 4")],
)
@pytest.mark.parametrize("make", [pa.array, lambda rows: np.array(rows, object)], ids=["arrow", "numpy"])
def test_bytes_that_are_no_rows_are_refused(files, make, rows, reason):
    with pytest.raises(ir.ExportError, match=f"the column for image is no array of numbers: its rows .*{reason}"):
        workers.runner(files["onnx"])(
            {"image": make(rows), "weight": make([1.0, 2.0]) if make is pa.array else np.ones(2, np.float32)}
        )


@pytest.mark.parametrize(
    "type",
    [pa.binary(), pa.list_(pa.float32()), pa.list_(pa.float32(), 192), pa.fixed_shape_tensor(pa.float32(), [3, 8, 8])],
)
@pytest.mark.parametrize("chunks", [None, 0, 1])
def test_no_rows_give_no_rows(files, type, chunks):
    none = pa.array([], type) if chunks is None else pa.chunked_array([pa.array([], type)] * chunks, type)
    given = {"weight": np.zeros(0, np.float32)}
    for column in (none, []):
        found = ir.runner(files["onnx"])(given | {"image": column})
        assert {n: len(c) for n, c in found.items()} == dict.fromkeys(found, 0) and found


def test_rows_of_different_lengths_are_refused(files):
    table = pa.table({"image": [[1.0], [1.0, 2.0]], "weight": pa.array([1.0, 2.0], pa.float32())})
    with pytest.raises(ir.ExportError, match="its rows have 1 to 2 elements"):
        workers.runner(files["onnx"])(table)


@pytest.mark.parametrize("target", workers.TARGETS)
def test_cloudpickle(files, target):
    runner = cloudpickle.loads(cloudpickle.dumps(workers.runner(files[target], ship=True)))
    table = workers.table()
    workers.check(table["id"], *runner(table).values(), files[target])
    runner.close()
