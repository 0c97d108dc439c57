"""Linear algebra in onnxruntime against torch."""

from __future__ import annotations

import pytest

from tests.linalg import check, check_batch, everything


@everything
def test_against_torch(name: str) -> None:
    check(name, "onnx")


@pytest.mark.parametrize("name", ["solve", "inv", "det", "lu", "lu_solve_adjoint", "cholesky_solve"])
def test_a_batch_of_any_size(name: str) -> None:
    check_batch(name, "onnx")
