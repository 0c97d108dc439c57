"""Which ops refuse places beyond an axis (ir.index_bounds.INDEXED), beside torch's kernels, and what is said."""

from __future__ import annotations

import pytest
import torch

import ir
from ir.errors import RefusedError
from ir.index_bounds import INDEXED, IndexBounds

X, INDEX = torch.randn(5, 3), torch.tensor([1, 2])
ROWS = INDEX[:, None].expand(2, 3).contiguous()
CALLS = {
    "aten::embedding": (lambda x, i: torch.nn.functional.embedding(i, x), INDEX),
    "aten::embedding_bag": (lambda x, i: torch.nn.functional.embedding_bag(i[None], x), INDEX),
    "aten::gather": (lambda x, i: x.gather(0, i), ROWS),
    "aten::scatter": (lambda x, i: x.scatter(0, i, 1.0), ROWS),
    "aten::scatter_add": (lambda x, i: x.scatter_add(0, i, x), ROWS),
    "aten::scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, x, "amax"), ROWS),
    "aten::index_select": (lambda x, i: x.index_select(0, i), INDEX),
    "aten::index_add": (lambda x, i: x.index_add(0, i, x[:2]), INDEX),
    "aten::index_copy": (lambda x, i: x.index_copy(0, i, x[:2]), INDEX),
    "aten::index_reduce": (lambda x, i: x.index_reduce(0, i, x[:2], "amax"), INDEX),
    "aten::one_hot": (lambda x, i: torch.nn.functional.one_hot(i, 5) + x[0, 0], INDEX),
}


def module(function):
    return type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()


@pytest.mark.parametrize("op", sorted(INDEXED.keys() - {"aten::_embedding_bag_forward_only"}))
def test_torch_refuses_what_is_refused(op):
    function, index = CALLS[op]
    graph = ir.capture(module(function), (X, index), dynamic_shapes=({0: "rows"}, {0: "n"}))
    assert op in {n.op for n in graph.nodes}
    places = IndexBounds(graph)
    for beyond in (-1, 5):
        bad = index.clone()
        bad.flatten()[:1] = beyond
        with pytest.raises((IndexError, RuntimeError)):
            function(X, bad)
        with pytest.raises(RefusedError, match="as indices from 0 to 4"):
            places.check((X, bad))
    places.check((X, index))
    places.check((X, index[:0]))


@pytest.mark.parametrize("function", [lambda x, i: x[i], lambda x, i: x.take(i), lambda x, i: x.index_fill(0, i, 1.0)])
def test_places_that_count_from_the_end(function):
    graph = ir.capture(module(function), (X, INDEX))
    function(X, INDEX - 3)
    IndexBounds(graph).check((X, INDEX - 3))


def test_a_part_of_an_input_is_not_all_of_it():
    function = lambda x, i: torch.nn.functional.embedding(i[1:].clamp(0), x) + torch.nn.functional.embedding(i[1:], x)  # noqa: E731
    graph = ir.capture(module(function), (X, INDEX))
    IndexBounds(graph).check((X, torch.tensor([-100, 2])))


def test_places_as_they_are():
    function = lambda x, i: torch.nn.functional.embedding(i.long().reshape(2, -1).T, x)  # noqa: E731
    graph = ir.capture(module(function), (X, torch.arange(4, dtype=torch.int32)))
    with pytest.raises(RefusedError, match="embedding takes the input i as indices"):
        IndexBounds(graph).check((X, torch.tensor([0, 1, 2, -100], dtype=torch.int32)))
