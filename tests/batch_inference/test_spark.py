"""Spark with two workers on this machine."""

from __future__ import annotations

import shutil
import sys

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

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    built = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
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
