"""`ir.coverage`, which `python -m ir ops` prints, agrees with what an export does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ir
from ir.coverage import coverage
from tests.ir.toy import Toy


def target(*names: str) -> Toy:
    made = Toy()
    for name in names:
        made.registry.add(name, lambda h, **arguments: h.emit("op"), override=True)
    return made


def asserts(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "x has to be positive")
    return x.sin()


def turns(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x) * 1j)


X = torch.ones(3, 2)


@pytest.mark.parametrize("model", [asserts, turns])
def test_what_an_export_takes_is_not_missing(model):
    names = "aten::sin aten::gt aten::all aten::mul aten::neg aten::add aten::sub aten::select aten::stack aten::full"
    toy = target(*names.split())
    ir.export(model, (X,), target=toy)
    rows = coverage(ir.capture(model, (X,)), toy)
    assert not [row.op for row in rows if row.how == "missing"]


def test_what_an_export_refuses_is_missing():
    rows = {row.op: row.how for row in coverage(ir.capture(lambda x: x.sin().cosh(), (X,)), target("aten::sin"))}
    assert rows == {"aten::sin": "native", "aten::cosh": "missing"}
    with pytest.raises(ir.UnsupportedOpsError, match="cosh"):
        ir.export(lambda x: x.cosh(), (X,), target=target("aten::sin"))
