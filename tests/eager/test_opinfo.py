"""torch's own operator database through the eager target: every entry that torch.export captures, bit for bit.

The optimised program as well, to rounding where oneDNN has a part in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests.eager.test_cases import assert_optimised, assert_same
from tests.opinfo.samples import Sample, database, name_of

PARTS = 8  # so that two processes share the work
SAMPLES = 3
LIMITS: dict[str, str] = {
    "sparse.sampled_addmm": "the IR has no sparse tensors",
    "sparse.mm.reduce": "the IR has no sparse tensors",
    "to_sparse": "the IR has no sparse tensors",
}


def samples(op: Any) -> list[Sample]:
    dtype = torch.float32 if torch.float32 in op.dtypes else min(op.dtypes, key=str, default=None)
    if dtype is None:
        return []
    try:
        return [Sample(op, s) for s in islice(op.sample_inputs("cpu", dtype), SAMPLES)]
    except Exception:
        return []  # needs a library or a device that is not here


def check(name: str, module: Sample, optimize: bool) -> bool:
    """Compare one sample; False if torch.export or torch itself does not take it."""
    try:
        program = torch.export.export(module, module.inputs(), strict=False)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = program.module(check_guards=False)(*module.inputs())
    except Exception:
        return False
    torch.manual_seed(0)
    exported = ir.export(ir.capture(program), target=Eager(optimize=optimize))
    actual = exported(*module.inputs())
    if "empty" in name:  # whatever the memory held
        actual, expected = pytree.tree_map_only(Tensor, torch.zeros_like, (actual, expected))
    if optimize:
        assert_optimised(exported, actual, expected)
    else:
        assert_same(actual, expected)
    return True


@dataclass(frozen=True)
class Outcome:
    """An entry: whether torch.export takes any of its samples, and what is wrong without and with passes."""

    captured: bool
    exact: str
    default: str


def outcome(op: Any) -> Outcome:
    """All samples of an entry, without passes and with them."""
    captured, wrong = False, {}
    for optimize in (False, True):
        for module in samples(op):
            try:
                captured |= check(name_of(op), module, optimize)
            except Exception as error:
                captured = True
                wrong.setdefault(optimize, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
    return Outcome(captured, wrong.get(False, ""), wrong.get(True, ""))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators(part: int) -> None:
    outcomes = {name_of(op): outcome(op) for op in database()[part::PARTS]}
    failures = {n for n, o in outcomes.items() if o.exact or o.default}
    assert {n: outcomes[n] for n in failures - LIMITS.keys()} == {}
    assert {n for n in LIMITS if n in outcomes and n not in failures} == set()  # strict: a limit that no longer holds
    assert sum(o.captured for o in outcomes.values()) > 80
