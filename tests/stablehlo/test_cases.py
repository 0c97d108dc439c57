"""The op case table on IREE: a slice of it here, the rest with the slow ones."""

from __future__ import annotations

import pytest

from tests.cases import ALL
from tests.harness import check_case
from tests.stablehlo.limits import LIMITS

SLICE = ALL[::24]


@pytest.mark.parametrize("case", SLICE, ids=lambda c: c.name)
def test_case(case):
    check_case(case, "stablehlo", LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in ALL if c not in SLICE], ids=lambda c: c.name)
def test_every_other_case(case):
    check_case(case, "stablehlo", LIMITS)


def test_every_limit_names_a_case():
    assert LIMITS.keys() <= {c.name for c in ALL}
