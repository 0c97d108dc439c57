"""Ray Data, Spark and Dask on this machine, over the same Parquet files: ids, and the results beside them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np

ROWS = 2048  # that an engine hands over at a time
Run = Callable[[Sequence[str], str, Any], tuple[np.ndarray, np.ndarray]]  # files, column and runner to ids and results


@contextmanager
def ray_engine(workers: int) -> Iterator[Run]:
    """Ray with a CPU for each worker and one to read with."""
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # not 15: what else runs here would come before the workers
    import ray

    from batch_inference import ray_data

    ray.init(num_cpus=workers + 1, include_dashboard=False, logging_level="ERROR", object_store_memory=4 << 30)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False

    def run(files: Sequence[str], column: str, runner: Any) -> tuple[np.ndarray, np.ndarray]:
        data = ray.data.read_parquet(list(files), columns=["id", column])
        made = ray_data.map_batches(data, runner, workers=workers, batch_size=ROWS, keep=["id"])
        parts = list(made.iter_batches(batch_size=None))
        return np.concatenate([p["id"] for p in parts]), np.concatenate([p["output"] for p in parts])

    try:
        yield run
    finally:
        ray.shutdown()


@contextmanager
def spark_engine(workers: int, of_bytes: bool = True) -> Iterator[Run]:
    """Spark with as many tasks at a time as workers; a task that fails runs again, up to six times."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from batch_inference import spark

    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.files.maxPartitionBytes": "16m",  # some dozens of tasks, so that no worker ends long before another
    }
    session = SparkSession.builder.master(f"local[{workers},6]").config(map=options).getOrCreate()
    session.sparkContext.setLogLevel("OFF")

    def run(files: Sequence[str], column: str, runner: Any) -> tuple[np.ndarray, np.ndarray]:
        predict = spark.predict_udf(runner, batch_size=ROWS)
        frame = session.read.parquet(*files)
        table = (
            frame.select("id", predict(f"{column}_bytes" if of_bytes else column).alias("found"))
            .select("id", "found.*")
            .toPandas()
        )
        return table["id"].to_numpy(), np.stack(list(table["output"]))

    try:
        yield run
    finally:
        session.stop()


@contextmanager
def dask_engine(workers: int) -> Iterator[Run]:
    """Dask with a process for each worker."""
    import dask
    import dask.dataframe
    from distributed import Client, LocalCluster

    from batch_inference import dask_frames

    def run(files: Sequence[str], column: str, runner: Any) -> tuple[np.ndarray, np.ndarray]:
        frame = dask.dataframe.read_parquet(list(files), columns=["id", column])
        table = dask_frames.map_partitions(frame, runner)[["id", "output"]].compute()
        return table["id"].to_numpy(), np.stack(list(table["output"]))

    with (
        dask.config.set({"dataframe.convert-string": False}),  # arrays are not texts
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        yield run


OPEN: dict[str, Callable[[int], AbstractContextManager[Run]]] = {
    "ray": ray_engine,
    "spark": spark_engine,
    "spark, arrays": partial(spark_engine, of_bytes=False),
    "dask": dask_engine,
}
