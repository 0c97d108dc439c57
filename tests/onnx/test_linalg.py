"""Linear algebra in onnxruntime against torch."""

from __future__ import annotations

import pytest
import torch

from tests.linalg import BATCHES, COMPLEX, SINGLE, check, check_batch, check_complex, everything


@everything
def test_against_torch(name: str) -> None:
    check(name, "onnx")


@pytest.mark.parametrize("name", SINGLE)
def test_float32(name: str) -> None:
    check(name, "onnx", torch.float32, 2e-4)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_matrices(name: str) -> None:
    check_complex(name, "onnx")


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_of_any_size(name: str) -> None:
    check_batch(name, "onnx")
