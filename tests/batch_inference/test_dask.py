"""Dask with two worker processes on this machine."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.batch_inference import workers

pytest.importorskip("distributed")
dask_frames = pytest.importorskip("batch_inference.dask_frames")


@contextmanager
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as made,
        Client(made) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def client():
    with cluster() as found:
        yield found


def frame():
    import dask
    import dask.dataframe
    import pandas as pd

    t = workers.table()
    whole = pd.DataFrame({"id": t["id"], "image": list(t["image"]), "weight": t["weight"]})
    with dask.config.set({"dataframe.convert-string": False}):  # which would make texts of arrays
        return dask.dataframe.from_pandas(whole, npartitions=12)


def collected(runner):
    import dask

    with dask.config.set({"dataframe.convert-string": False}):
        table = dask_frames.map_partitions(frame(), runner).compute()
    return table["id"], table["scores"], table["total"]


@pytest.mark.parametrize("target", workers.TARGETS)
@pytest.mark.parametrize("ship", [False, True])
def test_equal_to_the_plain_loop(client, files, target, ship, tmp_path):
    runner = workers.noted(workers.runner(files[target], ship=ship, workers=2), tmp_path / "notes")
    workers.check(*collected(runner), files[target])
    workers.check_sessions(tmp_path / "notes", 2)


@pytest.mark.parametrize("target", workers.TARGETS)
def test_workers_that_die_twice_lose_and_double_nothing(files, target, tmp_path):
    runner = workers.noted(workers.runner(files[target], workers=2), tmp_path / "notes", deaths=2)
    with cluster():
        workers.check(*collected(runner), files[target])
    workers.check_sessions(tmp_path / "notes", 2, deaths=2)
