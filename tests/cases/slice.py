"""The case table as parameters of a test of one backend alone: one in 24 runs in CI, all with -m "slow or not slow".

tests/integration/test_cases.py runs every case on every backend, from one capture.
"""

from __future__ import annotations

import pytest

from . import ALL

PARAMS = [pytest.param(case, id=case.name, marks=pytest.mark.slow if i % 24 else ()) for i, case in enumerate(ALL)]
