"""Special functions in onnxruntime against torch: everywhere, at their poles and far out."""

from __future__ import annotations

import torch

from tests.halves import half
from tests.special import FUNCTIONS, check, precisions


@half(FUNCTIONS, "onnx")
@precisions(torch.float64)
def test_against_torch(name: str, dtype: torch.dtype) -> None:
    check(name, "onnx", dtype)
