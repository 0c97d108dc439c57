"""Spark with two workers on this machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.batch_inference import workers

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark runs in a JVM", allow_module_level=True)
spark_adapter = pytest.importorskip("batch_inference.spark")


@pytest.fixture(scope="module")
def spark():
    import os

    from pyspark.sql import SparkSession

    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    built = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    # a worker imports what a test pickles; by the session, for the JVM may be an earlier test's, and its folder
    built = built.config("spark.executorEnv.PYTHONPATH", os.pathsep.join(places))
    found = built.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def frame(spark):
    from pyspark.sql.types import ArrayType, FloatType, LongType, StructField, StructType

    t = workers.table()
    rows = [
        (int(i), image.ravel().tolist(), float(w)) for i, image, w in zip(t["id"], t["image"], t["weight"], strict=True)
    ]
    kinds = [("id", LongType()), ("image", ArrayType(FloatType())), ("weight", FloatType())]
    return spark.createDataFrame(rows, StructType([StructField(n, k) for n, k in kinds])).repartition(6).cache()


def collected(frame, runner):
    predict = spark_adapter.predict_udf(runner, batch_size=32)
    table = frame.select("id", predict("image", "weight").alias("found")).select("id", "found.*").toPandas()
    return table["id"], table["scores"], table["total"]


@pytest.mark.parametrize("target", workers.TARGETS)
@pytest.mark.parametrize("ship", [False, True])
def test_equal_to_the_plain_loop(files, frame, target, ship, tmp_path):
    runner = workers.noted(workers.runner(files[target], ship=ship), tmp_path / "notes")
    workers.check(*collected(frame, runner), files[target])
    workers.check_sessions(tmp_path / "notes", 2)


@pytest.mark.parametrize("arrow", [True, False], ids=["arrow_udf", "predict_batch_udf"])
def test_equal_by_both_functions_of_spark(frame, files, arrow, tmp_path, monkeypatch):
    if arrow and not spark_adapter._has_arrow_udf():
        pytest.skip("pyspark before 4.1")
    monkeypatch.setattr(spark_adapter, "_has_arrow_udf", lambda: arrow)
    workers.check(*collected(frame, workers.runner(files["onnx"])), files["onnx"])


def test_rows_of_bytes(spark, files):
    t = workers.table()
    rows = [(int(i), x.tobytes(), float(w)) for i, x, w in zip(t["id"], t["image"], t["weight"], strict=True)]
    made = spark.createDataFrame(rows, "id long, image binary, weight float").repartition(6)
    workers.check(*collected(made, workers.runner(files["onnx"])), files["onnx"])


def test_rows_of_another_length_than_said_are_refused(spark, files, tmp_path):
    import torch

    import ir

    path = tmp_path / "sums.onnx"
    shapes = ({0: "batch", 1: "length"},)
    ir.export(lambda x: x.sum(1), (torch.randn(2, 6),), path=path, dynamic_shapes=shapes, input_names=["x"])
    with pytest.raises(ir.ExportError, match="give row_shapes="):
        spark_adapter.predict_udf(ir.runner(path))
    predict = spark_adapter.predict_udf(ir.runner(path), row_shapes={"x": [3]}, batch_size=2)
    frame = spark.createDataFrame([([1.0, 2.0, 3.0],), ([4.0, 5.0, 6.0],), ([7.0, 8.0, 9.0],)], "x array<float>")
    found = frame.select(predict("x").alias("y")).select("y.*").toPandas().iloc[:, 0]
    assert sorted(found) == [6.0, 15.0, 24.0]
    other = spark.createDataFrame([([1.0, 2.0],), ([3.0, 4.0, 5.0, 6.0],)], "x array<float>").coalesce(1)
    with pytest.raises(Exception, match="lists are all the expected size"):
        other.select(predict("x")).collect()


@pytest.mark.parametrize("target", workers.TARGETS)
def test_workers_that_die_twice_lose_and_double_nothing(files, frame, target, tmp_path):
    runner = workers.noted(workers.runner(files[target]), tmp_path / "notes", deaths=2)
    workers.check(*collected(frame, runner), files[target])
    workers.check_sessions(tmp_path / "notes", 2, deaths=2)


def test_every_type_of_spark_holds_the_values_of_ours():
    import numpy as np
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_type

    for name, sql in spark_adapter._SQL.items():
        arrow = to_arrow_type(getattr(types, sql)()).to_pandas_dtype()
        ours = "float32" if name == "bfloat16" else name
        assert np.can_cast(ours, arrow, "safe"), (name, sql)
