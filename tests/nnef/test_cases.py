"""The op case table on tract."""

from __future__ import annotations

import pytest

from tests.cases import ALL
from tests.harness import check_case
from tests.nnef.limits import LIMITS


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_case(case):
    check_case(case, "nnef", LIMITS)


def test_every_limit_names_a_case():
    assert LIMITS.keys() <= {c.name for c in ALL}
