"""A condition of a file that has no value at a call's sizes."""

import json

import pytest
import torch

import ir
from ir.errors import RefusedError
from ir.importer.pt2.recorded_conditions import EXTRA


@pytest.mark.parametrize("condition", [
    "Equality(FloorDiv(Integer(1), Add({0}, Integer(-12))), Integer(7))",
    "GreaterThan(OpaqueUnaryFn_acos({0}), Float('0.5'))",
    "GreaterThan(PowByNatural({0}, PowByNatural({0}, {0})), Integer(0))",
    "GreaterThan(RoundDecimal(ToFloat({0}), Float('0.5')), Integer(0))",
])  # fmt: skip
def test_a_call_is_refused_where_a_condition_has_no_value(condition, tmp_path):
    net = torch.nn.ReLU()
    program = torch.export.export(net, (torch.ones(12),), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    name = next(str(s) for s in program.range_constraints)
    branch = [condition.format(f"Symbol('{name}')"), "a.py:1"]
    record = json.dumps({"branches": [branch], "asked": [], "from_two": []})
    torch.export.save(program, path := tmp_path / "m.pt2", extra_files={EXTRA: record})
    exported = ir.export(path, target="eager")
    with pytest.raises(RefusedError, match="the graph holds only where"):
        exported(torch.ones(12))
