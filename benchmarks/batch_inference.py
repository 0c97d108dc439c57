"""Rows a second of Ray Data, Spark and Dask with one and two workers, beside the plain loop: -- --write.

Each worker computes with one thread, the plain loop as well. The engines' times are those of the second of two runs in
the same session, so that workers are up and sessions open.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ir
from ir.runtime import cpus
from tests.zoo import torchvision_shim  # noqa: F401  (torchvision imports only after it)

PAGE = Path(__file__).with_name("batch_inference.md")
SUFFIXES = {"onnx": ".onnx", "nnef": ".nnef.tgz", "eager": ".pt2"}
BATCH = 64
ENGINES = ("ray", "spark", "dask")


class Text(torch.nn.Module):
    """Two layers of an encoder over 16 tokens, and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1000, 64)
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(64, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)).mean(1))


def models() -> dict[str, tuple[torch.nn.Module, Callable[[int], np.ndarray], str]]:
    """By name: the model, rows, and the input's name."""
    import torchvision

    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    return {
        "resnet18, 3x16x16": (
            torchvision.models.resnet18(num_classes=10).eval(),
            lambda n: draw.integers(0, 256, (n, 3 * 16 * 16)).astype(np.float32) / 255,
            "x",
        ),
        "text, 2 layers, 16 tokens": (Text().eval(), lambda n: draw.integers(0, 1000, (n, 16)), "tokens"),
    }


def export(model: torch.nn.Module, rows: np.ndarray, name: str, folder: Path) -> dict[str, Path]:
    """The model for every target, with a dynamic number of rows."""
    example = torch.from_numpy(rows[:4].reshape(4, 3, 16, 16) if rows.shape[1] == 768 else rows[:4])
    paths = {}
    for target, suffix in SUFFIXES.items():
        paths[target] = folder / f"model{suffix}"
        ir.export(model, (example,), target=target, path=paths[target], dynamic_shapes=({0: "batch"},),
                  input_names=[name], output_names=["output"], verify=True)  # fmt: skip
    return paths


def runner(path: Path) -> Any:
    """One thread, BATCH rows at a time."""
    return ir.runner(path, threads=1, batch_size=BATCH)


@contextmanager
def ray_engine(workers: int, rows: np.ndarray, name: str) -> Iterator[Callable[[Any], np.ndarray]]:
    import ray

    from batch_inference import ray_data

    ray.init(num_cpus=workers + 2, include_dashboard=False, logging_level="ERROR", object_store_memory=1 << 30)
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.from_numpy(np.array_split(rows, 8 * workers)).rename_columns({"data": name}).materialize()

    def run(found: Any) -> np.ndarray:
        made = ray_data.map_batches(data, found, workers=workers, batch_size=1024)
        return np.concatenate([b["output"] for b in made.select_columns(["output"]).iter_batches(batch_size=None)])

    try:
        yield run
    finally:
        ray.shutdown()


@contextmanager
def spark_engine(workers: int, rows: np.ndarray, name: str) -> Iterator[Callable[[Any], np.ndarray]]:
    import sys

    import pandas as pd
    from pyspark.sql import SparkSession

    from batch_inference import spark as adapter

    os.environ["PYSPARK_PYTHON"] = sys.executable
    built = SparkSession.builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    built = built.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.memory", "3g")
    built = built.config("spark.sql.execution.arrow.pyspark.enabled", "true")
    session = built.config("spark.driver.host", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    frame = session.createDataFrame(pd.DataFrame({"id": np.arange(len(rows)), name: list(rows)}))
    frame = frame.repartition(8 * workers).cache()
    frame.count()

    def run(found: Any) -> np.ndarray:
        predict = adapter.predict_udf(found, batch_size=1024)
        table = frame.select("id", predict(name).alias("r")).select("id", "r.*").toPandas().sort_values("id")
        return np.stack(list(table["output"]))

    try:
        yield run
    finally:
        session.stop()


@contextmanager
def dask_engine(workers: int, rows: np.ndarray, name: str) -> Iterator[Callable[[Any], np.ndarray]]:
    import dask
    import dask.dataframe
    import pandas as pd
    from distributed import Client, LocalCluster

    from batch_inference import dask_frames

    with (
        dask.config.set({"dataframe.convert-string": False}),
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        frame = dask.dataframe.from_pandas(pd.DataFrame({name: list(rows)}), npartitions=8 * workers).persist()
        client.gather(client.compute(frame.map_partitions(len)))

        def run(found: Any) -> np.ndarray:
            return np.stack(list(dask_frames.map_partitions(frame, found)["output"].compute()))

        yield run


def plain_loop(rows: np.ndarray, name: str) -> Callable[[Any], np.ndarray]:
    """The runner over all rows in this process."""

    def run(found: Any) -> np.ndarray:
        return np.asarray(found({name: rows})["output"])

    return run


OPEN = {"ray": ray_engine, "spark": spark_engine, "dask": dask_engine}


def timed(
    run: Callable[[Any], np.ndarray], found: Any, count: int, wanted: np.ndarray | None
) -> tuple[float, np.ndarray]:
    """Rows a second of the second run, once its results were compared."""
    run(found)
    start = time.perf_counter()
    made = run(found)
    seconds = time.perf_counter() - start
    if wanted is not None:
        np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-4)
    return count / seconds, made


def main() -> None:
    """Measure and print a table, or write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--engines", nargs="*", default=ENGINES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = [f"{e}, {what}" for e in options.engines for what in ("1 worker", "2 workers", "times")]
    lines = [f"| model | target | plain loop | {' | '.join(columns)} |", "|---|---|" + "---:|" * (1 + len(columns))]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for title, (model, make, name) in models().items():
            rows = make(options.rows)
            paths = export(model, rows, name, Path(folder))
            loop = plain_loop(rows, name)
            plain = {t: timed(loop, runner(p), len(rows), None) for t, p in paths.items()}
            found: dict[tuple[str, str, int], float] = {}
            for engine in options.engines:
                for workers in (1, 2):
                    with OPEN[engine](workers, rows, name) as run:
                        for target, path in paths.items():
                            speed, _ = timed(run, runner(path), len(rows), plain[target][1])
                            found[engine, target, workers] = speed
                            print(title, engine, target, workers, f"{speed:.0f}", flush=True)
            for target in paths:
                cells = [f"{plain[target][0]:,.0f}"]
                for engine in options.engines:
                    one, two = found[engine, target, 1], found[engine, target, 2]
                    cells += [f"{one:,.0f}", f"{two:,.0f}", f"{two / one:.2f}"]
                lines.append(f"| {title} | {target} | " + " | ".join(cells) + " |")
    table = "\n".join(lines)
    print(table)
    if options.write:
        text = PAGE.read_text()
        head, _, rest = text.partition("<!-- table -->\n")
        _, _, tail = rest.partition("<!-- end of table -->")
        note = (
            f"{options.rows:,} rows, {cpus.available()} CPUs, load of the machine before the first run {load:.1f}.\n\n"
        )
        PAGE.write_text(f"{head}<!-- table -->\n{note}{table}\n<!-- end of table -->{tail}")


if __name__ == "__main__":
    main()
