"""Ray Data with two actors on this machine."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.batch_inference import workers

ray = pytest.importorskip("ray")
ray_data = pytest.importorskip("batch_inference.ray_data")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def dataset():
    return ray.data.from_items(
        [{k: v[i] for k, v in workers.table().items()} for i in range(workers.ROWS)]
    ).repartition(12)


def collected(found):
    table = found.to_pandas()
    return table["id"], table["scores"], table["total"]


@pytest.mark.parametrize("target", workers.TARGETS)
@pytest.mark.parametrize("ship", [False, True])
def test_equal_to_the_plain_loop(files, target, ship, tmp_path):
    runner = workers.noted(workers.runner(files[target], ship=ship), tmp_path / "notes")
    found = ray_data.map_batches(dataset(), runner, workers=2, batch_size=32)
    workers.check(*collected(found), files[target])
    workers.check_sessions(tmp_path / "notes", 2)


def test_one_block_is_for_all_workers_and_left_out_columns_stay_behind(files, tmp_path):
    whole = ray.data.from_numpy(workers.table()["image"]).rename_columns({"data": "image"})
    whole = whole.map_batches(lambda b: b | {k: workers.table()[k] for k in ("id", "weight")}, batch_size=None)
    assert whole.materialize().num_blocks() == 1
    runner = workers.noted(workers.runner(files["onnx"]), tmp_path / "notes")
    found = ray_data.map_batches(whole, runner, workers=2, batch_size=8, keep=["id"]).materialize()
    assert found.num_blocks() > 1 and found.columns() == ["id", "scores", "total"]
    workers.check(*collected(found), files["onnx"])


@pytest.mark.parametrize(
    ("actors", "threads", "share"), [(2, 1, 1), (3, 1, 1), (4, 1, 0.75), (2, 2, 1), (1, 4, 3), (5, 1, 1)]
)
def test_a_cpu_is_left_for_tasks_that_read(actors, threads, share):
    assert ray.cluster_resources()["CPU"] == 4
    assert ray_data._cpus(actors, threads) == share


def test_workers_on_all_cpus(files, tmp_path):
    runner = workers.noted(workers.runner(files["onnx"]), tmp_path / "notes")
    workers.check(*collected(ray_data.map_batches(dataset(), runner, workers=4, batch_size=8)), files["onnx"])
    workers.check_sessions(tmp_path / "notes", 4)


@pytest.mark.parametrize("target", workers.TARGETS)
def test_workers_that_die_twice_lose_and_double_nothing(files, target, tmp_path):
    runner = workers.noted(workers.runner(files[target]), tmp_path / "notes", deaths=2)
    found = ray_data.map_batches(dataset(), runner, workers=2, batch_size=32)
    workers.check(*collected(found), files[target])
    workers.check_sessions(tmp_path / "notes", 2, deaths=2)


def test_inputs_larger_than_the_object_store_flow_through(files):
    """300 MB of images through a store of 100 MB."""
    count = 400_000

    def images(batch):
        rows = len(batch["id"])
        return batch | {"image": np.ones((rows, 3, 8, 8), np.float32), "weight": np.ones(rows, np.float32)}

    data = ray.data.range(count, override_num_blocks=100).map_batches(images)
    found = ray_data.map_batches(data, workers.runner(files["onnx"]), workers=2)
    rows = 0
    for batch in found.select_columns(["id", "total"]).iter_batches(batch_size=None):
        assert np.ptp(batch["total"]) < 1e-5
        rows += len(batch["id"])
    assert rows == count
