"""The case table through the eager target: bit for bit what `ExportedProgram.module()` computes.

The optimised program may differ by rounding, and only where a pass changed the arithmetic. A slice of
the table runs here; tests/integration/test_cases.py runs it whole.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests import reached
from tests.cases import OTHER, TRACED, Case
from tests.cases.slice import PARAMS
from tests.eager.limits import LIMITS
from tests.harness import captured


def assert_same(actual: Any, expected: Any) -> None:
    """Equal structure, dtypes, shapes and bits; nan equals nan."""
    found, wanted = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(found) == len(wanted)
    for a, e in zip(found, wanted, strict=True):
        if isinstance(e, Tensor):
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)
        else:
            assert type(a) is type(e) and a == e


ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}  # of the largest value


def assert_optimised(program: ir.Exported, actual: Any, expected: Any) -> None:
    """Equal to rounding; equal bits where every pass that changed something keeps them."""
    if not any(k in program.artifact.listing() for k in ("onednn_", "_folded")):
        return assert_same(actual, expected)
    found, wanted = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(found) == len(wanted)
    for a, e in zip(found, wanted, strict=True):
        rounding = ROUNDING.get(e.dtype, 0)
        largest = float(e.abs().max()) if e.numel() and rounding else 0.0
        torch.testing.assert_close(a, e, rtol=rounding, atol=rounding * largest, equal_nan=True)
        assert a.stride() == e.stride()
    return None


def _exactly(program: ir.Exported, actual: Any, expected: Any) -> None:
    assert_same(actual, expected)


def check(case: Case) -> None:
    graph = captured(case)
    programs = [ir.export(graph, target=Eager(optimize=optimize)) for optimize in (False, True)]
    module = graph.context.program.module(check_guards=False)
    for sizes in (TRACED, OTHER) if case.dynamic_shapes else (TRACED, TRACED):  # twice: mutated buffers persist
        args = case.args(sizes)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = module(*args)
        for program, compare in zip(programs, (_exactly, assert_optimised), strict=True):
            own = case.args(sizes)
            torch.manual_seed(0)
            compare(program, program(*own), expected)
            compare(program, own, args)  # mutated inputs, too


def check_bits(case: Case) -> None:
    """A case passes, or stands in the limits and is refused for that reason."""
    with reached.noting(case.name, "eager"):
        if case.name not in LIMITS:
            return check(case)
        with pytest.raises(ir.ExportError, match=re.escape(LIMITS[case.name])):
            check(case)


@pytest.mark.parametrize("case", PARAMS)
def test_bits(case: Case) -> None:
    check_bits(case)
