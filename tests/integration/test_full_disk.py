"""A disk that is full, while an artifact of any target is written: one error, the older file whole, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch
from torch import nn

import ir
from tests.integration.test_paths import PLACES, tree

X = (torch.randn(1, 64),)

SCRIPT = """
import json, resource, signal, sys, torch, ir
from torch import nn
from tests.integration.test_full_disk import X, model
graph = ir.capture(model(1), X)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for target, path, options in json.loads(sys.argv[1]):
    program = ir.export(graph, target=target, **options)
    for limit in (0, 600, 10_000, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if limit < 0:
            break
        try:
            program.save(path)
        except ir.OutputError as error:
            assert isinstance(error, OSError) and "\\n" not in str(error), error
            print(path, error)
"""
WAYS = [*((target, name, {}) for target, name in PLACES), ("onnx", "external.onnx", {"external_data": True})]


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def test_a_full_disk_is_one_error(tmp_path):
    """Each way of writing at three limits of the size of files, all in one other process."""
    written = []
    for number, (target, name, options) in enumerate(WAYS):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        written.append((path, options, ir.export(model(0), X, target=target, path=path)))
    before = tree(tmp_path)
    ways = [(program.target.name, str(path), options) for path, options, program in written]
    command = [sys.executable, "-B", "-c", SCRIPT, json.dumps(ways)]  # or half of a .pyc is left in the environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert tree(tmp_path) == before
    for path, _, program in written:
        assert sum(line.startswith(f"{path} {path} is not written: ") for line in done.stdout.splitlines()) == 3
        assert len(os.listdir(path.parent)) == 1
        program.verify()
