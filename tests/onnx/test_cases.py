"""The op case table on onnxruntime."""

from __future__ import annotations

import pytest

from tests.cases import ALL
from tests.harness import check_case
from tests.onnx.limits import LIMITS


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_case(case):
    check_case(case, "onnx", LIMITS)


def test_every_limit_names_a_case():
    assert LIMITS.keys() <= {c.name for c in ALL}
