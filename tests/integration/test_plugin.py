"""The plugin in examples/plugin, installed with pip into a folder of its own and used from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
import json, sys, torch, warnings
import ir
from ir_hardmish import hardmish
args = (torch.randn(2, 3),)
found = {"before": "ir_hardmish.handlers" in sys.modules}
def ops(program, target):
    if target == "onnx":
        model = program.artifact
        return sorted({n.op_type for n in model.graph} | {f.name for f in model.functions.values()})
    return program.artifact.to_text()
model = lambda x: hardmish(x) + 1
for target in ("onnx", "nnef", "eager"):
    ir.export(model, args, target=target, verify=True)
found["undiscovered"] = "ir_hardmish.handlers" in sys.modules
found["body"] = ops(ir.export(model, args), "onnx")
for target in ("onnx", "nnef", "eager"):
    program = ir.export(model, args, target=target, verify=True, **json.loads(sys.argv[1]))
    if target != "eager":
        found[target] = ops(program, target)
found["discovered"] = "ir_hardmish.handlers" in sys.modules
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    copy = tmp_path_factory.mktemp("source") / "plugin"
    subprocess.run(["cp", "-r", str(ROOT / "examples" / "plugin"), str(copy)], check=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def run(folder, *command, **environment):
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("options", [{"discover_plugins": True}, {"plugins": ["ir_hardmish.handlers"]}])
def test_use(installed, options):
    found = json.loads(run(installed, "-c", USE, json.dumps(options)).splitlines()[-1])
    assert not found["before"] and not found["undiscovered"] and found["discovered"]
    assert "Clip" in found["onnx"] and "hardmish" not in str(found["onnx"])
    assert "hardmish" in str(found["body"]), "without the plugin the body is a function of the model"
    assert "clamp(" in found["nnef"] and "fragment" not in found["nnef"]


def test_listed(installed):
    listed = run(installed, "-m", "ir", "plugins")
    assert "ir_hardmish.handlers" in listed and "entry point of ir-hardmish 0.1.0" in listed
    listed = run(installed, "-m", "ir", "plugins", IR_PLUGINS="my_own.handlers")
    assert "my_own.handlers" in listed and "environment" in listed
