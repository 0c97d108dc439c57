"""Rows of docs/quirks/onnxruntime.md that no case of the table shows."""

from __future__ import annotations

import math

import pytest
import torch

import ir

ODD = torch.tensor([[0.0, -2.5, math.inf, -math.inf, 3.0e38]])
COUNTED = torch.arange(12.0).reshape(6, 2)
FORMS = {
    "clip without a bound": (lambda x: (x.clamp(max=1.0), x.clamp(min=-1.0)), (ODD,), None),
    "rows by a range from below zero": (lambda x: x[torch.arange(-2, x.shape[0] - 2)], (COUNTED,), ({0: "n"},)),
    "log_softmax of float64": (lambda x: x.log_softmax(1), (torch.tensor([[1.0, math.nan, math.inf]]).double(),), None),
    "factor of a float64 product": (lambda x: (x * 0.1) @ x.t(), (COUNTED.double() / 3,), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_what_torch_gives(name):
    function, args, shapes = FORMS[name]
    program = ir.export(function, args, target="onnx", dynamic_shapes=shapes)
    found, wanted = program(*args), function(*args)
    digits = 1e-14 if args[0].dtype is torch.float64 else 1e-6
    torch.testing.assert_close(found, wanted, rtol=digits, atol=0.0, equal_nan=True)
