"""Linear algebra in onnxruntime against torch."""

from __future__ import annotations

import torch

from tests.halves import half
from tests.linalg import BATCHES, CASES, COMPLEX, SINGLE, check, check_batch, check_complex


@half(CASES, "onnx")
def test_against_torch(name: str) -> None:
    check(name, "onnx")


@half(SINGLE, "onnx")
def test_float32(name: str) -> None:
    check(name, "onnx", torch.float32, 2e-4)


@half(COMPLEX, "onnx")
def test_complex_matrices(name: str) -> None:
    check_complex(name, "onnx")


@half(BATCHES, "onnx")
def test_a_batch_of_any_size(name: str) -> None:
    check_batch(name, "onnx")
