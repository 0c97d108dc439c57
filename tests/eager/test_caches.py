"""Caches of keys and values: attention reads each head once, and a step writes its place into the input itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ir
from eager_backend import Eager
from eager_backend.passes import GRAPH_PASSES

CACHE, PLACE, NEW = torch.randn(2, 2, 8, 4), torch.tensor([3]), torch.randn(2, 2, 1, 4)
LENGTHS = ({2: "length"}, None, None)


def compiled(function: Any, *args: Tensor, passes: Any = ("updates",), shapes: Any = LENGTHS) -> ir.Exported:
    given = [a.clone() for a in args]
    return ir.export(function, given, target=Eager(optimize=passes), dynamic_shapes=shapes)


def copies(program: ir.Exported) -> bool:
    """True if the program copies new contents into an input as a whole."""
    source: str = program.artifact.source
    return "write_back(" in source


def assert_same_writes(program: ir.Exported, function: Any, *args: Tensor) -> None:
    """Results and what is left in the inputs, of the program and of torch; which results lie in an input."""
    ours, theirs = [[a.clone() for a in args] for _ in range(2)]
    found, expected = program(*ours), function(*theirs)
    torch.testing.assert_close((found, ours), (expected, theirs), rtol=0, atol=0)
    for mine, other in zip(*([r] if isinstance(r, Tensor) else r for r in (found, expected)), strict=True):
        pairs = zip(ours, theirs, strict=True)
        assert all((mine.data_ptr() == a.data_ptr()) == (other.data_ptr() == b.data_ptr()) for a, b in pairs)


def copied(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, place, new)
    return cache.sum(-1)


def put(cache: Tensor, place: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    cache[:, :, place] = new
    return cache.sum(-1), cache


def viewed(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    return cache.index_copy_(2, place, new)[:, :1]


def sized(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    count = cache.size(2)
    return cache.index_copy_(2, place, new).sum(-1) + torch.arange(count)


@pytest.mark.parametrize("function", [copied, put, viewed, sized])
def test_an_input_is_written_where_it_lies(function: Any) -> None:
    program = compiled(function, CACHE, PLACE, NEW)
    assert not copies(program) and copies(compiled(function, CACHE, PLACE, NEW, passes=False))
    assert_same_writes(program, function, CACHE, PLACE, NEW)
    assert_same_writes(program, function, torch.randn(2, 2, 5, 4), PLACE, NEW)
    assert_same_writes(program, function, torch.randn(2, 8, 2, 4).transpose(1, 2), PLACE, NEW)
    program.verify()


def old_contents_returned(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    old = cache.clone()
    cache.index_copy_(2, place, new)
    return old


def old_contents_read(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, place, cache.mean(2, keepdim=True) + new)
    return cache.sum(-1)


def a_view_of_it_read(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, place, new + cache[:, :, :1])
    return cache.sum(-1)


def added(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache.index_put_((torch.tensor([0]),), new[:1, :, 0].unsqueeze(2), accumulate=True)
    return cache.sum(-1)


def written_again(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, place, new)
    return cache.mul_(2).sum(-1)


def checked_behind(cache: Tensor, place: Tensor, new: Tensor) -> Tensor:
    cache.index_copy_(2, place, new)
    torch._assert_async(new.sum() > -1000)
    count = place.item()
    torch._check(count > 0)
    return cache.sum(-1)


@pytest.mark.parametrize(
    "function", [old_contents_returned, old_contents_read, a_view_of_it_read, added, written_again, checked_behind]
)
def test_where_the_old_contents_matter_it_is_written_at_the_end(function: Any) -> None:
    program = compiled(function, CACHE, PLACE, NEW)
    assert copies(program)
    assert_same_writes(program, function, CACHE, PLACE, NEW)


def test_a_check_that_fails_leaves_the_input_as_it_was() -> None:
    program = compiled(checked_behind, CACHE, PLACE, NEW)
    cache = CACHE.clone()
    with pytest.raises((ir.ExportError, RuntimeError), match="u0 >= 1"):
        program(cache, torch.tensor([0]), NEW)
    assert torch.equal(cache, CACHE)


def test_one_of_two_inputs_is_written_where_it_lies() -> None:
    def both(cache: Tensor, place: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        cache.index_copy_(2, place, new)
        new.mul_(2)
        return new + 1, cache

    program = compiled(both, CACHE, PLACE, NEW)
    assert "cache.index_copy_(" in program.artifact.source and copies(program)
    assert_same_writes(program, both, CACHE, PLACE, NEW)


def test_a_buffer_is_written_at_the_end() -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", CACHE.clone())

        def forward(self, place: Tensor, new: Tensor) -> Tensor:
            return self.cache.index_copy_(2, place, new)  # type: ignore[operator,no-any-return]

    program = compiled(Cache(), PLACE, NEW, shapes=None)
    first = program(PLACE, NEW)
    program(torch.tensor([0]), NEW)
    assert not torch.equal(first, program(PLACE, NEW))  # the result is no view of the buffer


def grouped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch, heads, length, width = key.shape
    key, value = (
        x[:, :, None].expand(batch, heads, 3, length, width).reshape(batch, heads * 3, length, width)
        for x in (key, value)
    )
    return F.scaled_dot_product_attention(query, key, value)


def test_heads_are_shared_where_the_kernel_takes_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8)
    shapes = (None, {2: "length"}, {2: "length"})
    program = compiled(grouped, *given, passes=("attention",), shapes=shapes)
    assert "enable_gqa=True" in program.artifact.source and "expand" not in program.artifact.source
    torch.testing.assert_close(program(*given), grouped(*given))
    shared = GRAPH_PASSES["attention"]
    monkeypatch.setitem(GRAPH_PASSES, "attention", shared._replace(pays=lambda device: False))  # type: ignore[misc]
    program = compiled(grouped, *given, passes=("attention",), shapes=shapes)
    assert "enable_gqa" not in program.artifact.source
    torch.testing.assert_close(program(*given), grouped(*given))


def copied_into_it(cache: Tensor) -> Tensor:
    doubled = cache * 2
    cache.copy_(doubled)
    return doubled


def put_and_copied(cache: Tensor) -> Tensor:
    made = cache.index_copy(0, torch.tensor([1]), torch.ones(1, 4))
    cache.copy_(made)
    return made


def views_of_it(cache: Tensor) -> tuple[Tensor, ...]:
    cache.scatter_(0, torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 4))
    return cache, cache[1], cache.t(), cache[:, 2], cache[1:, ::2]


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("function", [copied_into_it, put_and_copied, views_of_it])
def test_results_lie_in_an_input_where_torch_s_do(function: Any, optimize: bool) -> None:
    program = compiled(function, torch.randn(3, 4), passes=optimize, shapes=None)
    for base in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2]):
        ours, theirs = (torch.empty_strided(base.shape, base.stride()).copy_(base) for _ in range(2))
        found, expected = (
            [r] if isinstance(r := f(x), Tensor) else r for f, x in ((program, ours), (function, theirs))
        )
        for mine, other in zip(found, expected, strict=True):
            assert torch.equal(mine, other) and mine.stride() == other.stride()
            places = [(r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), r.storage_offset())
                      for r, x in ((mine, ours), (other, theirs))]  # fmt: skip
            assert places[0] == places[1]


def test_one_head_of_queries_meets_repeated_heads_as_it_is() -> None:
    def model(query: Tensor, key: Tensor) -> Tensor:
        key = key.repeat_interleave(4, 1)
        return F.scaled_dot_product_attention(query, key, key)

    for heads in (1, 2):
        given = torch.randn(2, 1, 5, 16), torch.randn(2, heads, 7, 16)
        program = compiled(model, *given, passes=("attention",), shapes=None)
        torch.testing.assert_close(program(*given), model(*given))
