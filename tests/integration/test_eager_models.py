"""Small real models on the eager target, at the traced sizes and two others.

Without passes every bit is that of `ExportedProgram.module()`; with them results and intermediate values are equal to
rounding.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from tests.zoo import FIRST, NAMES, get


def check(name: str) -> None:
    model = get(name, small=True)
    args, kwargs = model.inputs(model.sizes)
    graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
    torch_own = graph.context.program.module(check_guards=False)
    exact, default = (ir.export(graph, target=Eager(optimize=optimize)) for optimize in (False, True))
    for sizes in (model.sizes, *model.other_sizes):
        args, kwargs = model.inputs(sizes)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = torch_own(*args, **kwargs)
        torch.manual_seed(0)
        actual = exact(*args, **kwargs)
        for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)
        default.verify(args, kwargs)
    inputs = graph.structure.flatten(args, kwargs)
    layers = exact.artifact.check(*inputs)
    assert layers.ok and layers.first is None, layers
    ours = sum(not n.origin.stack for n in graph.nodes)  # such as the scatter of a written view, which torch has not
    seen = sum(r.own is not None and r.inherited is not None for r in layers.rows)
    assert seen >= len(graph.nodes) - ours - len(graph.nodes) // 10
    fused = default.artifact.check(*inputs)
    assert fused.rows and fused.ok, fused


@pytest.mark.parametrize("name", FIRST[:3])
def test_model(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in FIRST[:3]])
def test_every_other_model(name: str) -> None:
    check(name)
