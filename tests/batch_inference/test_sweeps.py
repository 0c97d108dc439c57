"""The sweeps over a Ray cluster of this machine: as over their own processes, and one that was cut off goes on."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests import kept
from tests.fuzz import __main__ as fuzz
from tests.opinfo import __main__ as opinfo
from tests.opinfo.sweep import Sweep, run
from tests.pool import pool
from tests.zoo import sweep as zoo

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def address():
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(zoo.ROOT), os.environ.get("PYTHONPATH", "")])}}
    context = ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env=environment)
    yield context.address_info["gcs_address"]
    ray.shutdown()


class Doubling:
    """Its process ends at its first item, once for all workers."""

    def __init__(self, note):
        self.note = note

    def ask(self, item):
        if self.note is not None and not self.note.exists():
            self.note.touch()
            os._exit(1)
        return 2 * item, os.getpid()

    def close(self):
        pass


def test_items_are_drawn_as_answers_come(address):
    for where in (None, address):
        answers: dict[int, int] = {}
        items = iter(range(100))
        wanted = iter(lambda answers=answers, items=items: next(items) if len(answers) < 10 else None, None)
        for item, (doubled, _) in pool(partial(Doubling, None), wanted, 2, where):
            answers[item] = doubled
        assert 10 <= len(answers) <= 12 and all(v == 2 * k for k, v in answers.items())


def test_an_actor_that_dies_is_asked_again(address, tmp_path):
    found = list(pool(partial(Doubling, tmp_path / "died"), range(20), ray=address))
    assert sorted(item for item, _ in found) == [*range(20)]
    assert {a // 2 for _, (a, _) in found} == {*range(20)} and os.getpid() not in {p for _, (_, p) in found}


def test_models(address, tmp_path):
    names = ["gru", "lstm"]
    items = [(n, ["onnx", "eager"], False) for n in names]
    found = {item[0]: made for item, made in pool(partial(zoo.Worker, tmp_path, True), items, ray=address)}
    assert found.keys() == {*names}
    for made, died in found.values():
        assert not died and made["onnx"]["error"] < 1e-4 and made["eager"]["error"] < 1e-4


def test_operators(address):
    names = ["add", "softmax", "nonzero", "matmul"]
    found = {name: status for name, status, _ in run(Sweep(), names, address)}
    assert found == {name: status for name, status, _ in run(Sweep(), names)}


def test_random_programs_go_on(address, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    first = fuzz.run("7", 3, ["eager"], 1, address)
    again = fuzz.run("7", 6, ["eager"], 1, address, resume=True)
    assert again.items() >= first.items() and len(again) > len(first)
    here = fuzz.run("7", 3, ["eager"], 2)
    assert all(here[n] == again[n] for n in here.keys() & again.keys())


def test_a_line_that_was_cut_off_is_measured_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert kept.rows(file) == []
    file.write_text('["add", 1]\n["mul", 2]\n["su')
    assert kept.rows(file) == [["add", 1], ["mul", 2]]
    assert file.read_text() == '["add", 1]\n["mul", 2]\n', "the next line would go behind a half one"
    (tmp_path / "gru.json").write_text('{"onnx": {"err')
    assert zoo.stored(tmp_path / "gru.json") == zoo.stored(tmp_path / "none.json") == {}


def test_operators_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(opinfo, "KEPT", tmp_path)
    opinfo.Kept(Sweep(), False).add("add", "pass", "")
    assert opinfo.Kept(Sweep(), True).results == {"add": ("pass", "")}
    assert opinfo.Kept(Sweep(dtype="int64"), True).results == {}
    assert opinfo.Kept(Sweep(), False).results == {}
