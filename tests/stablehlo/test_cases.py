"""The op case table on IREE, a slice of it; the rest is slow."""

from __future__ import annotations

import pytest

from tests.cases import ALL
from tests.cases.slice import PARAMS
from tests.harness import check_case
from tests.stablehlo.limits import LIMITS


@pytest.mark.parametrize("case", PARAMS)
def test_case(case):
    check_case(case, "stablehlo", LIMITS)


def test_every_limit_names_a_case():
    assert LIMITS.keys() <= {c.name for c in ALL}
