"""torch's own operator database through the eager target: every entry that torch.export captures, bit for bit.

The optimised program as well, to rounding where oneDNN has a part in it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests.eager.test_cases import assert_optimised, assert_same
from tests.opinfo.samples import Sample, name_of

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


def check(name: str, module: Sample) -> bool:
    """False if torch.export or torch itself does not take the sample."""
    try:
        program = torch.export.export(module, module.inputs(), strict=False)
        reference = program.module(check_guards=False)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = reference(*module.inputs())
    except Exception:
        return False
    graph = ir.capture(program)
    for optimize in (False, True):
        torch.manual_seed(0)
        optimised = ir.export(graph, target=Eager(optimize=optimize))
        actual = optimised(*module.inputs())
        if "empty" in name:  # whatever the memory held
            actual, expected = pytree.tree_map_only(Tensor, torch.zeros_like, (actual, expected))
        if optimize:
            assert_optimised(optimised, actual, expected)
        else:
            assert_same(actual, expected)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators(part: int) -> None:
    database = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    failures, ran = {}, 0
    for op in database[part::PARTS]:
        name = name_of(op)
        try:
            ran += bool(sum(check(name, module) for module in samples(op)))
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    names = {name_of(op) for op in database[part::PARTS]}
    assert {n: e for n, e in failures.items() if n not in LIMITS} == {}
    assert {n for n in LIMITS if n in names and n not in failures} == set()  # strict: a limit that no longer holds
    assert ran > 80
