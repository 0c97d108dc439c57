"""Run where only the wheels of ir and onnx_backend are installed: other targets say what to install."""

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
