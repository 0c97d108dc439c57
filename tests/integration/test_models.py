"""Real models, small variants, on every target at traced sizes and two others; full sizes: `nox -s models`."""

from __future__ import annotations

import pytest

from tests.zoo import FIRST
from tests.zoo.measure import TARGETS, check


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FIRST)
def test_model(name, target, tmp_path):
    check(name, target, tmp_path)
