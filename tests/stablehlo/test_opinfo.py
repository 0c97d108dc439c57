"""A fixed slice of torch's operator database: right, or refused where it says so; docs/opinfo-stablehlo.md has all."""

from __future__ import annotations

import pytest

from tests.opinfo.samples import database, name_of
from tests.opinfo.sweep import Sweep, outcome

SLICE = {name_of(op): op for op in database()[::24]}
REFUSED = {"chalf", "linalg.eigvals", "nn.functional.gaussian_nll_loss", "normal"}


@pytest.mark.parametrize("name", SLICE)
def test_entry(name):
    status, detail = outcome(name, SLICE[name], Sweep("stablehlo"))
    assert status in ("refused" if name in REFUSED else "pass", "excluded"), detail
