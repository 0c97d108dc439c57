"""Small variants of the zoo on a GPU: torch's module there, the program, the program as a CUDA graph, another batch."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from eager_backend.runtime.cuda_graphs import obstacles
from tests import zoo
from tests.cuda.common import GPU, Reference, assert_equal, there


@pytest.mark.parametrize("name", zoo.NAMES)
def test_model(name: str) -> None:
    model = zoo.get(name, small=True)
    args, kwargs = model.inputs(model.sizes)
    graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
    program, reference = ir.export(graph, target=Eager(device=GPU)), Reference(graph)
    recordable = not list(obstacles(program.artifact)) and not graph.updates and not graph.random
    captured = None
    for sizes in (model.sizes, *model.other_sizes):
        args, kwargs = there(model.inputs(sizes))
        expected = reference(*args, **kwargs)
        torch.manual_seed(0)
        assert_equal(program(*args, **kwargs), expected)
        if recordable:
            flat = graph.structure.flatten(args, kwargs)
            captured = captured or program.artifact.capture(*flat)
            assert_equal(captured(*flat), program.artifact(*flat))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", zoo.FIRST)
def test_model_in_half(name: str, dtype: torch.dtype) -> None:
    model = zoo.get(name, small=True)
    args, kwargs = model.inputs(model.sizes)
    graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
    program = ir.export(graph, target=Eager(device=GPU, dtype=dtype))
    args, kwargs = there((args, kwargs))
    full, half = Reference(graph)(*args, **kwargs), program(*args, **kwargs)
    for h, f in zip(*map(pytree.tree_leaves, (half, full)), strict=True):
        assert h.device == f.device and h.shape == f.shape
        if f.is_floating_point():
            assert h.dtype == dtype
            assert (h.float() - f).norm() <= 0.1 * f.norm() + 1e-3
