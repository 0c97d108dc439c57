"""Conditions on sizes that a .pt2 file has in a record of its own: none is dropped, and each has a value or none."""

import json
import re

import pytest
import torch

import ir
from ir.dim_functions import power
from ir.dims import call, evaluate, symbol
from ir.errors import CaptureError, NotComputed, RefusedError
from ir.importer.pt2.recorded_conditions import EXTRA

X = torch.ones(12)


class Twice(torch.nn.Module):
    def forward(self, x):
        return x.repeat(2)


@pytest.fixture
def file(tmp_path):
    def write(condition):
        program = torch.export.export(Twice(), (X,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=2**40)},))
        name = next(str(s) for s in program.range_constraints)
        branch = [condition.format(f"Symbol('{name}')"), "a.py:1"]
        record = json.dumps({"branches": [branch], "asked": [], "from_two": []})
        torch.export.save(program, path := tmp_path / "m.pt2", extra_files={EXTRA: record})
        return path

    return write


@pytest.mark.parametrize("condition", [
    "GreaterThan(Symbol('nothere'), Integer(3))", "Foo({0})", "Piecewise({0})", "ExprCondPair({0}, true)", "{0}",
    "GreaterThan(FloorToInt(Float('inf')), {0})", "Where({0}, {0}, {0})", "false",
])  # fmt: skip
def test_what_is_no_condition_is_not_dropped(condition, file):
    with pytest.raises(CaptureError):
        ir.capture(file(condition))


@pytest.mark.parametrize("condition", [
    "GreaterThan(PowByNatural({0}, PowByNatural({0}, PowByNatural({0}, {0}))), Integer(0))",
    "GreaterThan(LShift(Integer(1), Mul({0}, Integer(10000000000))), Integer(0))",
    "Equality(FloorDiv(Integer(1), Add({0}, Integer(-12))), Integer(7))",
    "GreaterThan(OpaqueUnaryFn_exp(Mul({0}, Integer(1000))), Float('0.5'))",
    "GreaterThan(OpaqueUnaryFn_log(Add({0}, Integer(-12))), Float('0.5'))",
    "GreaterThan(OpaqueUnaryFn_acos({0}), Float('0.5'))",
    "GreaterThan(LShift(Integer(1), Add({0}, Integer(-13))), {0})",
    "GreaterThan(BitwiseFn_bitwise_and({0}, ToFloat({0})), Integer(0))",
    "GreaterThan(RoundDecimal(ToFloat({0}), Float('0.5')), Integer(0))",
])  # fmt: skip
def test_a_condition_without_a_value_does_not_hold(condition, file):
    graph = ir.capture(file(condition))
    (check,) = (n.args["self"] for n in graph.nodes if n.op == "aten::_assert_scalar")
    (name,) = check.symbols
    with pytest.raises(NotComputed, match=rf"cannot be computed at {name}=12"):
        evaluate(check, {name: 12})


@pytest.mark.parametrize(("condition", "holds"), [
    ("GreaterThan({0}, Integer(3))", True), ("StrictLessThan(PowByNatural({0}, Integer(3)), Integer(1000))", False),
    ("true", True),
])  # fmt: skip
def test_a_condition_is_asked(condition, holds, file):
    graph = ir.capture(file(condition))
    checks = [n.args["self"] for n in graph.nodes if n.op == "aten::_assert_scalar"]
    assert all(evaluate(c, dict.fromkeys(c.symbols, 12)) is holds for c in checks)


def test_a_number_has_the_length_of_a_size():
    n = symbol("n")
    assert evaluate(call("pow", n, 3), {"n": 5}) == 125 and evaluate(call("lshift", n, 3), {"n": 5}) == 40
    for fn in ("pow", "lshift"):
        with pytest.raises(RefusedError, match=re.escape("more than 128 bits")):
            evaluate(call(fn, n, n), {"n": 1000})


def test_powers_of_one_have_no_bound():
    assert [power(a, 10**9) for a in (-1, 0, 1)] == [1, 0, 1]
    with pytest.raises(OverflowError):
        power(2, 10**9)
