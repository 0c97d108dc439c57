"""A disk that is full, while an artifact of any target is written: one error, the older file whole, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import ir
from tests.integration.test_paths import PLACES, tree

X = (torch.randn(1, 64),)

SCRIPT = """
import resource, signal, sys, torch, ir
from torch import nn
from tests.integration.test_full_disk import X, model
target, path, external = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
graph = ir.capture(model(1), X)
program = ir.export(graph, target=target, **({"external_data": True} if external else {}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (0, 600, 10_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        program.save(path)
    except ir.OutputError as error:
        assert isinstance(error, OSError) and "\\n" not in str(error), error
        print(error)
    sys.stdout.flush()
"""


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


@pytest.mark.parametrize(("target", "name"), [*PLACES, ("external", "m.onnx")])
def test_a_full_disk_is_one_error(target, name, tmp_path):
    external = target == "external"
    target = "onnx" if external else target
    program = ir.export(model(0), X, target=target, path=tmp_path / name)
    before = tree(tmp_path)
    command = [sys.executable, "-c", SCRIPT, target, str(tmp_path / name), str(external)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and done.stdout.count(f"{name} is not written: ") == 3, done.stderr[-2000:]
    assert tree(tmp_path) == before and len(os.listdir(tmp_path)) == 1
    program.verify()
