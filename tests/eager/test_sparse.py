"""Sparse tensors: inputs, weights, what lies between, results; as torch has them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ir
from eager_backend import Eager

from .test_cases import assert_same

LAYOUTS = {
    "coo": torch.sparse_coo, "csr": torch.sparse_csr, "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr, "bsc": torch.sparse_bsc,
}  # fmt: skip


class Graph(nn.Module):
    """A layer over a fixed sparse adjacency, as in graph networks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("adjacency", torch.randn(6, 6).relu().to_sparse())
        self.register_buffer("calls", torch.zeros(()))
        self.linear = nn.Linear(5, 400)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.calls += 1
        hidden = self.linear(torch.sparse.mm(self.adjacency, x) * 2.0).relu()
        sparse = hidden.to_sparse()
        return hidden, sparse * 0.5, (sparse + sparse).to_dense()


def rows(count: int) -> Tensor:
    return torch.randn(6, 5) * count


@pytest.mark.parametrize("optimize", [False, True])
def test_sparse_weights_and_results(optimize: bool) -> None:
    graph = ir.capture(Graph(), (rows(1),))
    program = ir.export(graph, target=Eager(optimize=optimize))
    module = graph.context.program.module(check_guards=False)
    for count in (1, 2):
        x = rows(count)
        with torch.no_grad():
            assert_same(program(x), module(x))
    assert program.verify().ok
    assert program.artifact.check(x).ok
    assert program.artifact.trace(x)["to_sparse"].layout is torch.sparse_coo
    assert "aten::_sparse_mm" in str(program.artifact.profile(x, runs=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to_dense() * 2.0, x

    dense = torch.arange(24.0).view(4, 6) * (torch.arange(6) % 3 == 0)
    block = (2, 2) if layout in ("bsr", "bsc") else None
    x = dense.to_sparse(layout=LAYOUTS[layout], blocksize=block)
    graph = ir.capture(twice, (x,))
    assert graph.inputs[0].type.layout == f"sparse_{layout}"
    assert f"f32[4, 6] sparse_{layout}" in str(graph)
    for optimize in (False, True):
        assert_same(ir.export(graph, target=Eager(optimize=optimize))(x), twice(x))


def test_new_sparse_weights() -> None:
    first, second = Graph(), Graph()
    second.adjacency = torch.eye(6).to_sparse()  # fewer elements, in other places
    program = ir.export(first, (rows(1),), target=Eager(optimize=False))
    other = program.artifact.clone()
    program.artifact.load_state_dict(second.state_dict())
    x = rows(1)
    with torch.no_grad():
        assert_same(program(x), second(x))
        assert_same(list(other(x))[:3], first(x))
