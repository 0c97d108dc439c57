"""Real models, small variants, on every target at traced sizes and two others; full sizes: `nox -s models`.

Of the first zoo, the ONNX file itself too: it holds no node that does nothing.
"""

from __future__ import annotations

import onnx
import pytest

import ir
from tests.onnx.scan import findings
from tests.zoo import ALSO, FIRST, NAMES, get, wide
from tests.zoo.measure import TARGETS, captured, check

FAST = {*FIRST, *ALSO}
ALL = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in NAMES]


def check_file(folder, *model):
    _, graph = captured(*model)
    described = onnx.load(ir.export(graph, target="onnx", path=folder / "described.onnx", metadata=True).path)
    assert findings(described) == []
    plain = onnx.load(ir.export(graph, target="onnx", path=folder / "plain.onnx").path)
    assert [n.op_type for n in plain.graph.node] == [n.op_type for n in described.graph.node]
    assert not plain.graph.value_info and not any(n.metadata_props for n in plain.graph.node)


@pytest.mark.parametrize("target", [*TARGETS, "file"])  # one after the other, for they share the capture
@pytest.mark.parametrize("name", ALL)
def test_model(name, target, tmp_path):
    if target == "file":
        check_file(tmp_path, get, name, True)
    else:
        check(target, tmp_path, get, name, True)


# Of the second zoo, one or two of a class that once failed; all of it: `python -m tests.zoo.wide.sweep`.
WIDE = ("unet", "yolo3", "alibi_blocks", "point_net", "wavenet", "vae")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", WIDE)
def test_model_of_the_second_zoo(name, target, tmp_path):
    check(target, tmp_path, wide.get, name)
