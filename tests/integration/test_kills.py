"""SIGKILL at any moment of a write: the old artifact is there whole, and the next export leaves nothing but its own."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import ir

TARGETS = {
    "onnx": "m.onnx",
    "onnx shards": "m.onnx",
    "nnef": "m.nnef.tar",
    "nnef directory": "m",
    "eager": "m.pt2",
}
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


class Table(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, 1024))

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


class Tables(nn.Module):
    """Eight weights."""

    def __init__(self, rows: int):
        super().__init__()
        self.tables = nn.ModuleList(Table(rows) for _ in range(8))

    def forward(self, x):
        return [table(x) for table in self.tables]


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file below."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): hashlib.file_digest(p.open("rb"), "sha1").hexdigest() for p in files}


def started(program: ir.Exported, path: Path) -> int:
    """The id of a process that begins to write the program."""
    ready, begins = os.pipe()
    process = os.fork()
    if process:
        os.close(begins)
        os.read(ready, 1)
        os.close(ready)
        return process
    try:
        os.write(begins, b".")
        program.save(path)
    finally:
        os._exit(0)


@pytest.mark.parametrize(
    ("megabytes", "count"), [(40, 6), pytest.param(400, 60, marks=pytest.mark.slow)], ids=["40 MB", "400 MB"]
)
@pytest.mark.parametrize("name", TARGETS)
def test_kills_while_writing(name: str, megabytes: int, count: int, tmp_path: Path) -> None:
    path, target = tmp_path / TARGETS[name], name.split()[0]
    options = {"max_shard_size": megabytes << 17} if name == "onnx shards" else {}  # eight data files
    old = ir.export(Table(2), (torch.randn(2, 1024),), target=target)
    new = ir.export(Tables(megabytes * 32), (torch.randn(2, 1024),), target=target, **options)
    new.save(path)
    old.save(path)
    before = contents(tmp_path)
    start = time.perf_counter()
    new.save(path)
    seconds = time.perf_counter() - start
    after = contents(tmp_path)
    assert name != "onnx shards" or len(after) == 9
    old.save(path)
    moments, left, late = random.Random(7), 0, 0
    kills = 0
    while kills < count or not left:
        kills += 1
        assert kills < 100 * count
        process = started(new, path)
        time.sleep(moments.random() * seconds)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        here = contents(tmp_path)
        whole = {n: h for n, h in here.items() if ".partial/" not in n}
        data = {n: h for n, h in after.items() if n.endswith(".data")}  # moved first: here they may lie beside the old
        assert whole == after or (before.items() <= whole.items() <= (before | data).items())
        assert whole in (before, after) or here != whole
        left, late = left + (here != whole), late + (whole == after)
        if here == whole:  # on a loaded machine no two writes take as long
            seconds *= 0.8 if whole == after else 1.25
        old.save(path)
        assert contents(tmp_path) == before and len(os.listdir(tmp_path)) == 1
    print(f"{name}: {kills} kills in {seconds:.2f} s of writing, {left} left a part, {late} came too late")
