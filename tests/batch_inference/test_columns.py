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
    yield "arrays by name", {"image": pa.array(list(flat)), "weight": pa.array(t["weight"])}
    yield "pandas", pd.DataFrame({"image": list(t["image"]), "weight": t["weight"]})


@pytest.mark.parametrize(("name", "table"), tables(), ids=lambda x: x if isinstance(x, str) else "")
def test_equal_to_numpy(files, name, table):
    runner = workers.runner(files["onnx"])
    wanted, found = runner(workers.table(9)), runner(table)
    if name == "pandas":
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
