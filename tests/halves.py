"""Shared mathematics is tested on one backend or the other in CI, and on both with the slow tests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def half(names: Iterable[str], target: str) -> pytest.MarkDecorator:
    """Every other name for onnx, and those between for nnef; the rest is slow."""
    odd = target == "nnef"
    own = [pytest.param(name, marks=() if i % 2 == odd else pytest.mark.slow) for i, name in enumerate(names)]
    return pytest.mark.parametrize("name", own)
