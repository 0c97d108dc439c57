"""A slice of the planted faults: the faulty node is at rank 1, and a script of it fails in a fresh process."""

from __future__ import annotations

import pytest

from tests.planted_faults import FAULTS, Planted, rank, reduced

SLICE = (
    ("vit_b_16", "onnx", "another epsilon", "aten::layer_norm", "layer_norm_2"),
    pytest.param("vit_b_16", "nnef", "the tanh form of gelu", "aten::gelu", "gelu_1", marks=pytest.mark.slow),
    pytest.param("vit_b_16", "eager", "a weight in half precision", "aten::linear", "linear_4", marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("model", "target", "name", "op", "node"), SLICE)
def test_the_faulty_node_is_found_and_reduced(model, target, name, op, node):
    fault = next(f for f in FAULTS if (f.name, f.op) == (name, op))
    found = reduced(rank(Planted(model, target, fault, node)))
    assert found.rank == 1 and found.fails and found.nodes == 1 and found.lines <= 30, found
