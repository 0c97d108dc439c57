"""Which indices ops refuse (ir.indexed.INDEXED), beside torch's kernels, and what is said."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir
from ir.errors import RefusedError
from ir.index_bounds import IndexBounds
from ir.indexed import INDEXED

X, INDEX = torch.randn(5, 5), torch.tensor([1, 2])
ROWS = INDEX[:, None].expand(2, 5).contiguous()
CALLS = {
    "embedding": (lambda x, i: F.embedding(i, x), INDEX),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), INDEX),
    "gather": (lambda x, i: x.gather(0, i), ROWS),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), ROWS),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), ROWS),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, x, "amax"), ROWS),
    "index_select": (lambda x, i: x.index_select(0, i), INDEX),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), INDEX),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:2]), INDEX),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x[:2], "amax"), INDEX),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), INDEX),
    "index": (lambda x, i: x[:, i], INDEX),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), INDEX),
    "take": (lambda x, i: x.take(i), INDEX),
    "put": (lambda x, i: x.put(i, x[0, :2]), INDEX),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i), INDEX),
    "nll_loss_nd": (lambda x, i: F.nll_loss(x[:2], i), INDEX),
    "cross_entropy_loss": (lambda x, i: F.cross_entropy(x[:2], i), INDEX),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x[:2], i), INDEX),
    "multilabel_margin_loss": (lambda x, i: F.multilabel_margin_loss(x[0], i), torch.tensor([1, 2, 0, 3, 4])),
    "one_hot": (lambda x, i: F.one_hot(i, 5) + x[0, 0], INDEX),
}
# what the functions above become in torch's own decompositions, or what the importer writes
INNER = (
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "nll_loss",
    "nll_loss2d",
    "_unsafe_index",
    "_unsafe_index_put",
    "multilabel_margin_loss_forward",
)


def module(function):
    return type("Model", (torch.nn.Module,), {"forward": staticmethod(function)})()


def test_every_op_is_called():
    assert {op[6:] for op in INDEXED} == CALLS.keys() | set(INNER)


@pytest.mark.parametrize("op", sorted(CALLS))
def test_torch_refuses_what_is_refused_and_takes_the_rest(op):
    function, index = CALLS[op]
    graph = ir.capture(module(function), (X, index))
    (node,) = [n for n in graph.nodes if n.op == f"aten::{op}"]
    bound, *_ = INDEXED[node.op](node.args)
    bounds = IndexBounds(graph)
    for n in (bound.lowest - 1, bound.lowest, bound.size - 1, bound.size):
        given = index.clone()
        given.flatten()[:1] = n
        if bound.lowest <= n < bound.size:
            function(X, given), bounds.check((X, given))
            continue
        with pytest.raises((IndexError, RuntimeError)):
            function(X, given)
        with pytest.raises(RefusedError, match=f"as indices from {bound.lowest} to {bound.size - 1}"):
            bounds.check((X, given))
    bounds.check((X, index[:0]))


@pytest.mark.parametrize("function", [lambda x, i: x[i], lambda x, i: x.take(i), lambda x, i: x.index_fill(0, i, 1.0)])
def test_indices_that_count_from_the_end(function):
    graph = ir.capture(module(function), (X, INDEX))
    function(X, INDEX - 3)
    IndexBounds(graph).check((X, INDEX - 3))


COMPUTED = {
    "without_the_last": lambda x, i: F.embedding(i[:-1], x),
    "joined": lambda x, i: F.embedding(torch.cat([i, i.flip(0)]), x),
    "moved": lambda x, i: F.embedding(i + 1 - 1, x),
    "row": lambda x, i: x.index_add(0, i[1:], x[:1].expand(i.shape[0] - 1, 5)),
    "expanded": lambda x, i: x.gather(0, i[:, None].expand(-1, 5)),
    "positions": lambda x, i: F.embedding(torch.arange(i.shape[0]), x),
    "beside_a_buffer": lambda x, i: F.embedding(torch.tensor([0, 1]) + i[0], x),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_indices_that_the_model_computes_of_integers(name):
    function = COMPUTED[name]
    graph = ir.capture(module(function), (X, torch.tensor([1, 2, 3])), dynamic_shapes=(None, {0: "n"}))
    bounds = IndexBounds(graph)
    for numbers in ([0, 4, 2], [0, 4, -1], [7, 0, 0], [0, 7, 1], [0, 1, 2, 3, 4, 0], [-2, 1]):
        i = torch.tensor(numbers)
        try:
            function(X, i)
        except (IndexError, RuntimeError):
            with pytest.raises(RefusedError, match="as indices from 0 to 4"):
                bounds.check((X, i))
        else:
            bounds.check((X, i))


def test_indices_that_are_made_of_floats_are_left_to_the_runtime():
    graph = ir.capture(module(lambda x, i: F.embedding(x[0].argsort(), x) + i[0]), (X, INDEX))
    IndexBounds(graph).check((X, INDEX))


def test_indices_as_they_are():
    function = lambda x, i: F.embedding(i.long().reshape(2, -1).T, x)  # noqa: E731
    graph = ir.capture(module(function), (X, torch.arange(4, dtype=torch.int32)))
    with pytest.raises(RefusedError, match="embedding takes the input i as indices"):
        IndexBounds(graph).check((X, torch.tensor([0, 1, 2, -100], dtype=torch.int32)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_numbers_as_indices(dtype):
    bounds = IndexBounds(ir.capture(module(lambda x, i: x[i.long()]), (X, INDEX.to(dtype))))
    bounds.check((X, INDEX.to(dtype)))
    with pytest.raises(RefusedError, match=r"index takes the input i as indices from -5 to 4, and it has from 2 to 5"):
        bounds.check((X, torch.tensor([2, 5]).to(dtype)))
