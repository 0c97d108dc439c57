"""The sizes that views are given as numbers are these numbers in the graph."""

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import ir

VIEWS = {
    "unflatten": (lambda x: x.unflatten(1, (-1, 8)), (6, 16), (8,)),
    "view": (lambda x: x.flatten().view(-1, 2, 4), (6, 16), (2, 4)),
    "reshape": (lambda x: x.reshape(x.shape[0], -1, 8), (6, 16), (8,)),
    "behind": (lambda x: x.unflatten(1, (-1, 8)).flatten(1).unsqueeze(1) + 1, (6, 16), ()),
    "negative_axis": (lambda x: x.unflatten(-1, (-1, 8)), (6, 16), (8,)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (6, 3, 8, 4), ()),
}


@pytest.mark.parametrize("name", sorted(VIEWS))
@pytest.mark.parametrize("way", ["module", "file"])
def test_numbers_stay(name, way, tmp_path):
    fn, shape, last = VIEWS[name]
    module = type("Of", (torch.nn.Module,), {"forward": lambda self, x: fn(x)})()
    args, sizes = (torch.randn(shape),), ({0: Dim.DYNAMIC, len(shape) - 1: Dim.DYNAMIC},)
    if way == "file":
        torch.export.save(torch.export.export(module, args, dynamic_shapes=sizes), tmp_path / "m.pt2")
        graph = ir.capture(tmp_path / "m.pt2")
    else:
        graph = ir.capture(module, args, dynamic_shapes=sizes)
    made = graph.outputs[0].type.shape
    assert made[len(made) - len(last) :] == last
    assert not any("//(" in str(d) for node in graph.nodes for v in node.outputs for d in v.type.shape), graph
    if name == "pixel_unshuffle":
        assert made[1] == 12
