"""Run where only the wheels of ir and onnx_backend are installed: other targets and the command say what to install."""

import subprocess
import sys

import torch

import ir

model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
x = torch.randn(2, 4)
program = ir.export(model, (x,), target="onnx", verify=True)
print(program, program.report)
for target, package in {"nnef": "nnef_backend", "eager": "eager_backend"}.items():
    try:
        ir.export(model, (x,), target=target)
    except ir.PluginError as error:
        assert package in str(error), error
    else:
        raise AssertionError(f"{target} is installed")
done = subprocess.run([sys.executable, "-m", "ir", "export", "timm:resnet18"], capture_output=True, text=True)
assert done.returncode == 1 and done.stderr.count("\n") == 1 and "pip install 'ir[cli]'" in done.stderr, done
