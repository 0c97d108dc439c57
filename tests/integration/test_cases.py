"""The op case table on every backend, whole: a case is captured once, and most of its time is torch.export's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.cases import ALL, Case
from tests.eager.test_cases import check_bits
from tests.harness import check_case
from tests.nnef.limits import LIMITS as NNEF
from tests.onnx.limits import LIMITS as ONNX

CHECKS: dict[str, Callable[[Case], None]] = {
    "onnx": partial(check_case, target="onnx", limits=ONNX),
    "nnef": partial(check_case, target="nnef", limits=NNEF),
    "eager": check_bits,
}
ROWS = [pytest.param(case, check, id=f"{name}-{case.name}") for case in ALL for name, check in CHECKS.items()]


@pytest.mark.parametrize(("case", "check"), ROWS)
def test_case(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
