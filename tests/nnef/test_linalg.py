"""Linear algebra in tract against torch."""

from __future__ import annotations

import torch

from tests.halves import half
from tests.linalg import BATCHES, CASES, COMPLEX, SINGLE, check, check_batch, check_complex


@half(CASES, "nnef")
def test_against_torch(name: str) -> None:
    check(name, "nnef")


@half(SINGLE, "nnef")
def test_float32(name: str) -> None:
    check(name, "nnef", torch.float32, 2e-4)


@half(COMPLEX, "nnef")
def test_complex_matrices(name: str) -> None:
    check_complex(name, "nnef")


@half(BATCHES, "nnef")
def test_a_batch_of_any_size(name: str) -> None:
    check_batch(name, "nnef")
