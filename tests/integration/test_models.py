"""Real models, small variants, on every target at traced sizes and two others; full sizes: `nox -s models`."""

from __future__ import annotations

import pytest

from tests.zoo import ALSO, FIRST, NAMES
from tests.zoo.measure import TARGETS, check, check_model
from tests.zoo.wide import get

FAST = (*FIRST, *ALSO)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FAST)
def test_model(name, target, tmp_path):
    check(name, target, tmp_path)


# Of the second zoo, one or two of a class that once failed; all of it: `python -m tests.zoo.wide.sweep`.
WIDE = ("unet", "yolo3", "alibi_blocks", "point_net", "wavenet", "vae")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WIDE)
def test_model_of_the_second_zoo(name, target, tmp_path):
    check_model(get(name), target, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FAST])
def test_every_other_model(name, target, tmp_path):
    check(name, target, tmp_path)
