"""`ir.runner`: files of every target over columns, in this process and in others."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
import torch

import ir
from ir.runtime import cpus, sessions

TARGETS = ("onnx", "nnef", "eager")
SUFFIX = {"onnx": ".onnx", "nnef": ".nnef.tgz", "eager": ".pt2"}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.a(x)) * y.unsqueeze(-1)
        return self.b(h), h.sum(-1)


torch.manual_seed(0)
MODEL = Model().eval()
X, Y = np.random.default_rng(0).standard_normal((2, 37, 4), np.float32)[0], np.arange(37, dtype=np.float32)
WANTED = [t.detach().numpy() for t in MODEL(torch.from_numpy(X), torch.from_numpy(Y))]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("runner"), {}
    for target in TARGETS:
        for name, shapes in (("dynamic", ({0: "batch"}, {0: "batch"})), ("fixed", None)):
            path = folder / f"{name}{SUFFIX[target]}"
            args = (torch.randn(8, 4), torch.randn(8))
            ir.export(MODEL, args, target=target, path=path, dynamic_shapes=shapes, output_names=["logits", "total"])
            found[target, name] = path
    return found


def runner_of(source, target, **options):
    """A .pt2 file keeps no names of outputs."""
    names = {"output_0": "logits", "output_1": "total"} if target == "eager" else None
    return ir.runner(source, outputs=names, **options)


def check(table) -> None:
    assert list(table) == ["logits", "total"]
    for got, wanted in zip(table.values(), WANTED, strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-5)


def here(runner, table):
    """For a worker: the results, and what its process has opened."""
    return runner(table), os.getpid(), len(sessions.opened_here()), runner.program.threads


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["dynamic", "fixed"])
def test_rows_are_split_and_padded(files, target, name):
    for size in (None, 8) if name == "fixed" else (None, 1, 7, 37, 100):
        check(runner_of(files[target, name], target, batch_size=size)({"x": X, "y": Y, "other": ["kept"] * 37}))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pad", [False, True])
def test_no_rows_and_padding(files, target, pad):
    runner = runner_of(files[target, "dynamic"], target, batch_size=16, pad=pad)
    check(runner({"x": X, "y": Y}))
    table = runner({"x": X[:0], "y": Y[:0]})
    assert [t.shape for t in table.values()] == [(0, 3), (0,)]


def test_torch_in_torch_out(files):
    table = ir.runner(files["onnx", "dynamic"])({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)})
    assert all(isinstance(t, torch.Tensor) for t in table.values())
    check(table)


def test_columns_and_outputs_by_other_names(files):
    runner = ir.runner(files["onnx", "dynamic"], columns={"x": "features"}, outputs=["total"])
    table = runner({"features": list(X), "y": Y.astype(np.int16)})  # rows of their own; a narrower type
    np.testing.assert_allclose(table["total"], WANTED[1], rtol=1e-5, atol=1e-5)
    assert list(table) == ["total"]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"x": X}, {}, "there is no column 'y' among x"),
        ({"x": X, "y": Y[:-1]}, {}, r"different numbers of rows \(x 37, y 36\)"),
        ({"x": X.astype(np.float64), "y": Y}, {}, "holds float64, and the file takes float32"),
        ({"x": X[:, :3], "y": Y}, {}, r"has the sizes \[3\], and the file takes float32"),
        ({"x": [[1.0], [1.0, 2.0]], "y": Y}, {}, "is no array of numbers"),
        ({"x": X, "y": Y}, {"outputs": ["none"]}, "has no output 'none': it gives logits, total"),
        ({"x": X, "y": Y}, {"columns": {"z": "x"}}, "has no input 'z': it takes x, y"),
        ([1, 2], {}, "a list is no table of named columns"),
    ],
)
def test_refusals(files, table, options, message):
    with pytest.raises(ir.ExportError, match=message):
        ir.runner(files["onnx", "dynamic"], **options)(table)


def test_no_file(tmp_path):
    with pytest.raises(ir.ExportError, match="no such file"):
        ir.runner(tmp_path / "none.onnx")


def test_constants_and_results_without_rows(tmp_path):
    def scaled(x, scale):
        return x * scale, x.sum()

    path = tmp_path / "scaled.onnx"
    args = (torch.randn(4, 2), torch.tensor(2.0))
    ir.export(scaled, args, path=path, dynamic_shapes=({0: "batch"}, None), output_names=["rows", "sum"])
    with pytest.raises(ir.ExportError, match="no first dimension in common"):
        ir.runner(path)({"x": X[:, :2], "scale": Y})
    with pytest.raises(ir.ExportError, match="the output sum has the sizes"):
        ir.runner(path, constants={"scale": 3.0})({"x": X[:, :2]})
    runner = ir.runner(path, constants={"scale": 3.0}, outputs=["rows"], batch_size=5)
    np.testing.assert_array_equal(runner({"x": X[:, :2]})["rows"], X[:, :2] * np.float32(3))


WAYS = itertools.product(TARGETS, ("fork", "spawn"), (False, True))


@pytest.mark.parametrize(
    ("target", "method", "ship"),
    [pytest.param(*w, marks=() if w[1] == "fork" or w == ("onnx", "spawn", False) else pytest.mark.slow) for w in WAYS],
)
def test_workers(files, target, ship, method):
    runner = runner_of(files[target, "dynamic"], target, workers=cpus.available(), batch_size=5, ship=ship)
    check(runner({"x": X, "y": Y}))  # the parent has a session of its own, which a forked process must not touch
    parts = [{"x": X[i : i + 4], "y": Y[i : i + 4]} for i in range(0, 37, 4)]
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        found = list(pool.map(here, [runner] * len(parts), parts, timeout=120))
    tables, pids, opened, threads = zip(*found)
    check({n: np.concatenate([t[n] for t in tables]) for n in tables[0]})
    assert set(opened) == {1} and os.getpid() not in pids
    assert set(threads) == {1}
    runner.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_pool(files, method):
    runner = ir.runner(files["onnx", "dynamic"], threads=1)
    check(runner({"x": X, "y": Y}))
    with multiprocessing.get_context(method).Pool(2) as pool:
        tables = pool.map(runner, [{"x": X[:20], "y": Y[:20]}, {"x": X[20:], "y": Y[20:]}])
    check({n: np.concatenate([t[n] for t in tables]) for n in tables[0]})


@pytest.mark.parametrize("target", TARGETS)
def test_threads_share_one_session(files, target):
    runner = runner_of(files[target, "dynamic"], target, threads=1, batch_size=6)
    runner.close()
    before, barrier = len(sessions.opened_here()), threading.Barrier(4)

    def call(_):
        barrier.wait()
        return pickle.loads(pickle.dumps(runner))({"x": X, "y": Y})

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for table in pool.map(call, range(4)):
            check(table)
    assert len(sessions.opened_here()) == before + 1


@pytest.mark.parametrize("target", TARGETS)
def test_close_ends_the_session_and_a_call_opens_another(files, target):
    with runner_of(files[target, "dynamic"], target, threads=1, ship=True) as runner:
        check(runner({"x": X, "y": Y}))
        (folder,) = [s.folder.path for k, s in sessions._HERE.open.items() if k == runner._key]
        assert folder.exists()
    assert not folder.exists() and runner._key not in sessions._HERE.open
    check(runner({"x": X, "y": Y}))
    runner.close()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("written", [False, True])
def test_a_program_becomes_a_runner(tmp_path, target, written):
    path = tmp_path / f"model{SUFFIX[target]}" if written else None
    args, shapes = (torch.randn(8, 4), torch.randn(8)), ({0: "batch"}, {0: "batch"})
    program = ir.export(MODEL, args, target=target, path=path, dynamic_shapes=shapes, output_names=["logits", "total"])
    runner = runner_of(program, target)
    assert (runner.packed is None) is written
    check(pickle.loads(pickle.dumps(runner))({"x": X, "y": Y}))
    runner.close()


def test_a_file_that_was_replaced_is_opened_anew(tmp_path):
    path = tmp_path / "model.onnx"
    ir.export(lambda x: x + 1, (torch.zeros(2),), path=path, input_names=["x"], output_names=["y"])
    runner = ir.runner(path)
    assert runner({"x": np.zeros(2, np.float32)})["y"].tolist() == [1, 1]
    ir.export(lambda x: x + 2, (torch.zeros(2),), path=path, input_names=["x"], output_names=["y"])
    assert runner({"x": np.zeros(2, np.float32)})["y"].tolist() == [2, 2]


def test_external_data_goes_along(tmp_path):
    path = tmp_path / "model.onnx"
    program = ir.export(MODEL, (torch.randn(8, 4), torch.randn(8)), path=path, external_data=True, verify=True,
                        dynamic_shapes=({0: "batch"}, {0: "batch"}), output_names=["logits", "total"])  # fmt: skip
    runner = ir.runner(program, ship=True)
    for file in tmp_path.iterdir():
        file.unlink()
    check(runner({"x": X, "y": Y}))
    runner.close()


def test_the_package_itself_is_pickled():
    assert pickle.loads(pickle.dumps(ir)) is ir


def test_share_of_the_cpus(monkeypatch):
    monkeypatch.setattr(cpus, "available", lambda: 8)
    assert [cpus.share(n) for n in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    for said, threads in (("3", 3), ("64", 8), ("0", 1), ("2,1", 2), ("", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert cpus.share() == threads
