"""The op case table on onnxruntime, a slice of it: tests/integration/test_cases.py runs it whole."""

from __future__ import annotations

import pytest

from tests.cases import ALL
from tests.cases.slice import PARAMS
from tests.harness import check_case
from tests.onnx.limits import LIMITS


@pytest.mark.parametrize("case", PARAMS)
def test_case(case):
    check_case(case, "onnx", LIMITS)


def test_every_limit_names_a_case():
    assert LIMITS.keys() <= {c.name for c in ALL}
