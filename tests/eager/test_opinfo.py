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
from eager_backend.passes import strides
from tests.eager.test_cases import assert_optimised, assert_same
from tests.opinfo.samples import Sample, database, name_of

PARTS = 8  # so that two processes share the work
SAMPLES = 3
LIMITS: dict[str, str] = {}


def samples(op: Any) -> list[Sample]:
    dtype = torch.float32 if torch.float32 in op.dtypes else min(op.dtypes, key=str, default=None)
    if dtype is None:
        return []
    try:
        return [Sample(op, s) for s in islice(op.sample_inputs("cpu", dtype), SAMPLES)]
    except Exception:
        return []  # needs a library or a device that is not here


def check(name: str, module: Sample, optimize: bool) -> str:
    """Compare one sample; why torch.export or torch itself does not take it, empty if they do."""
    try:
        program = torch.export.export(module, module.inputs(), strict=False)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = program.module(check_guards=False)(*module.inputs())
    except Exception as error:
        return first_line(error)
    torch.manual_seed(0)
    exported = ir.export(ir.capture(program), target=Eager(optimize=optimize))
    actual = exported(*module.inputs())
    if "empty" in name:  # whatever the memory held
        actual, expected = pytree.tree_map_only(Tensor, torch.zeros_like, (actual, expected))
    if optimize:
        assert_optimised(exported, actual, expected)
    else:
        assert_same(actual, expected)
    return ""


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


@dataclass(frozen=True)
class Outcome:
    """An entry: why torch.export takes none of its samples, or what is wrong without and with passes."""

    refused: str
    exact: str
    default: str

    @property
    def captured(self) -> bool:
        return not self.refused


def outcome(op: Any) -> Outcome:
    """All samples of an entry, without passes and with them."""
    refusals, wrong = [], {}
    for optimize in (False, True):
        for module in samples(op):
            try:
                refusals.append(check(name_of(op), module, optimize))
            except Exception as error:
                refusals.append("")
                wrong.setdefault(optimize, first_line(error))
    refused = refusals[0] if refusals else "no samples for the CPU"
    return Outcome(refused if all(refusals) else "", wrong.get(False, ""), wrong.get(True, ""))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators(part: int) -> None:
    outcomes = {name_of(op): outcome(op) for op in database()[part::PARTS]}
    failures = {n for n, o in outcomes.items() if o.exact or o.default}
    assert {n: outcomes[n] for n in failures - LIMITS.keys()} == {}
    assert {n for n in LIMITS if n in outcomes and n not in failures} == set()  # strict: a limit that no longer holds
    assert sum(o.captured for o in outcomes.values()) > 80


def _turned(t: Any) -> Any:
    """The same tensor, its elements in memory in the reverse order of its axes."""
    if not isinstance(t, Tensor) or t.layout is not torch.strided or t.dim() < 2:
        return t
    return t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))


@pytest.mark.slow
def test_operators_that_fail_for_other_strides_are_known() -> None:
    """What `strides.any_strides` gives contiguous tensors, beside the views, which are reshapes."""
    known = {fn.__name__ for fn in strides._STRIDED} | {"view", "view_as"}
    failed = set()
    for op in database():
        for module in samples(op):
            given = module.inputs()
            try:
                module(*given)
            except Exception:
                continue
            try:
                module(*map(_turned, given))
            except Exception:
                failed.add(name_of(op))
    assert "view" in failed
    assert failed <= known
