"""Whole models, small variants, at traced sizes and two others: a few here, 21 in all with the slow ones."""

from __future__ import annotations

import pytest

from tests.zoo import ALSO, FIRST, get
from tests.zoo.measure import TARGETS, check

FAST = ("resnet18", "lstm", "t5_encoder")


def checked(name, folder, monkeypatch):
    monkeypatch.setitem(TARGETS, "stablehlo", ".vmfb")
    check("stablehlo", folder, get, name, True)


@pytest.mark.parametrize("name", FAST)
def test_model(name, tmp_path, monkeypatch):
    checked(name, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*FIRST, *ALSO) if name not in FAST])
def test_every_other_model(name, tmp_path, monkeypatch):
    checked(name, tmp_path, monkeypatch)
