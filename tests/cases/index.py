"""Reading and writing by computed positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import boolean, f16, f32, family, i32, i64, inf, mod, nan, row, u8

TABLE = f32(5, 3)
PLACES = i64("B", low=0, high=5)
SPARSE = [[0.0, 1.5, 0.0], [2.0, 0.0, -1.0]]
# Writing twice to one place leaves torch's result undefined, unless it accumulates: these are distinct.
DISTINCT = i64(value=[3, 0, 4])
ROWS = i64(value=[[2, 0, 1], [0, 2, 3]])


def of_as_many(x):
    """What is asked of elements whose number the data decides, which may be none."""
    places = torch.arange(x.shape[0])
    return x.mean(), x.std(), x.softmax(0), x.argsort(), places, torch.zeros(x.shape[0], 2), torch.cat([x, x[x > 1]])


def assign_column(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:, 1] = y
    return z


def assign_slice(x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[:, 1:-1] = x[:, 2:]
    z[..., 0] += 10
    return z


def assign_mask_row(x: Tensor, row: Tensor) -> Tensor:
    z, y = x.clone(), x.clone()
    z[x[..., 0] > 0] = row
    y[:, x[0, :, 1] > 0] = x[:, :1]
    return z + y


def assign_strided(x: Tensor) -> Tensor:
    z = x.new_zeros(x.shape[0], 2 * x.shape[1])
    z[:, 0::2] = x.sin()
    z[:, 1::2] = x.cos()
    return z


def assign_mask(x: Tensor) -> Tensor:
    z = x.clone()
    z[z < 0] = 0.5
    return z


def assign_own(x: Tensor) -> tuple[Tensor, ...]:
    """Hits take numbers made of themselves: as many as there are."""
    first, rows, columns, added, some = x.clone(), x.clone(), x[None].clone(), x.clone(), x.clone()
    hit = x[:, 0] > 0
    first[x > 0] *= 0.5
    rows[hit] = rows[hit][:, :1] + 1
    columns[:, hit] = columns[:, hit] * 3
    added.index_put_((hit,), x[hit] + 1, accumulate=True)
    some[x > 99] = some[x > 99] * 2
    return first, rows, columns, added, some


def assign_constant_mask(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:, torch.tensor([True, False, True])] = y[:, None]
    return z


def assign_places(x: Tensor, places: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[places] = y
    return z


def assign_input(x: Tensor) -> Tensor:
    x[0] = 5.0
    return x + 1


ODD = [nan, inf, -inf, -0.0, 0.0, 1.0]


def equal_zeros(x, i):
    """Tensors that are equal until each is written to."""
    made = [[torch.zeros_like(x, dtype=t).index_fill(0, i + n, 1) for n in (0, 1)] for t in (x.dtype, torch.int64)]
    return [t for pair in made for t in pair]


def written_by_place(x):
    """As VITS writes the ends of its splines: into a tensor whose length data decides."""
    kept = x[x > 0]
    made = torch.zeros(2, kept.shape[0]) + kept
    made[0] = 1.0
    made[-1] = made[-1] * 2
    return made


CASES = family(
    __name__,
    row("select_scatter_counted", written_by_place, f32("S")),
    row("gather", lambda x, i: x.gather(1, i), f32("B", 5), i64("B", 3, low=0, high=5)),
    row("gather_dim_0", lambda x, i: torch.gather(x, 0, i), TABLE, i64("B", 2, low=0, high=5)),
    row("gather_number", lambda x, i: (x.gather(0, i), x.index_copy(0, i, x[0] + 1)), f32("B"), i64(value=0)),
    row("scatter_number", lambda x, i, y: x.scatter(0, i, y) + x.scatter_add(0, i, y), f32(), i64(value=[0]), f32()),
    row("gather_smaller_index", lambda x, i: x.gather(-1, i), f32("B", 4, 5), i64("B", 2, 3, low=0, high=5)),
    row("gather_after_topk", lambda x, y: y.gather(1, x.topk(2).indices), f32("B", 5), f32("B", 5)),
    row("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), f32("B", 5), i64(1, "N", low=0, high=5)),
    row("combinations", lambda x: (torch.combinations(x[0], 3), torch.combinations(x[1], 2, True)), f32(2, 5)),
    row("combinations_of_none", lambda x: torch.combinations(x, 0) + 1, f32("B")),
    row("combinations_of_few", lambda x: (torch.combinations(x[0], 6), torch.combinations(x[1], 1)), f32("B", 5)),
    row("take_along_dim_sorted", lambda x: torch.take_along_dim(x, x.argsort(0), 0), f32("B", "N")),
    row("take_along_dim_i32", lambda x, i: torch.take_along_dim(x, i), f32(2, 5), i32(1, 3, low=0, high=5)),
    row("take", lambda x, i: torch.take(x, i), TABLE, i64("B", 2, low=0, high=15)),
    row("index_select", lambda x, i: x.index_select(1, i), f32("B", 5), i64("N", low=0, high=5)),
    row("index_select_i32", lambda x, i: x.index_select(0, i), TABLE, i32("N", low=0, high=5)),
    # x[...]
    row("index", lambda x, i: x[i], TABLE, PLACES),
    row("index_matrix", lambda x, i: x[i], TABLE, i64("B", "S", low=0, high=5)),
    row("index_negative", lambda x, i: x[i], TABLE, i64("B", low=-5, high=0)),
    row("index_second", lambda x, i: x[:, i], f32("B", 5, 2), i64("N", low=0, high=5)),
    row("index_last", lambda x, i: x[..., i], f32("B", 2, 5), i64("N", low=0, high=5)),
    row("index_two", lambda x, i, j: x[i, j], TABLE, PLACES, i64("B", low=0, high=3)),
    row("index_two_broadcast", lambda x, i, j: x[i[:, None], j], TABLE, PLACES, i64("N", low=0, high=3)),
    row("index_two_apart", lambda x, i, j: x[i, :, j], f32(5, 2, 4), PLACES, i64("B", low=0, high=4)),
    row("index_two_adjacent", lambda x, i, j: x[:, i, j], f32(2, 5, 4), PLACES, i64("B", low=0, high=4)),
    row("index_and_slice", lambda x, i: x[i, 1:], TABLE, PLACES),
    row("index_and_none", lambda x, i: x[i, None], TABLE, PLACES),
    row("index_and_int", lambda x, i: x[i, 1], TABLE, PLACES),
    row("index_list", lambda x: x[:, [2, 0, 2]], f32("B", 3)),
    row("index_batch_arange", lambda x, i: x[torch.arange(x.shape[0]), i], f32("B", 5, 3), PLACES),
    row("index_scalar_tensor", lambda x, i: x[i], TABLE, i64(low=0, high=5)),
    row("index_mask", lambda x, m: x[m], f32("B", 3), boolean("B", 3)),
    row("index_mask_rows", lambda x: x[x[:, 0] > 0], f32("B", 3)),
    row("index_mask_sum", lambda x: x[x > 0].sum(), f32("B", 3)),
    row("index_mask_of_none", lambda x: of_as_many(x[x > 9]), f32("B", 3)),
    row("index_mask_of_some", lambda x: of_as_many(x[x > 0]), f32("B", 3)),
    # writing
    row("assign_column", assign_column, f32("B", 3), f32("B")),
    row("assign_slice", assign_slice, f32("B", "S")),
    row("assign_strided", assign_strided, f32("B", 3)),
    row("assign_constant_mask", assign_constant_mask, f32("B", 3), f32("B")),
    row("assign_mask", assign_mask, f32("B", 3)),
    row("assign_own", assign_own, f32("B", 3)),
    row("assign_mask_row", assign_mask_row, f32("B", 4, 3), f32(3)),
    row("assign_places", assign_places, TABLE, DISTINCT, f32(3)),
    row("assign_input", assign_input, f32("B", 3)),
    row("index_put", lambda x, i, v: x.index_put((i,), v), TABLE, DISTINCT, f32(3, 3)),
    row(
        "index_put_two",
        lambda x, i, j: x.index_put((i, j), torch.tensor(9.0)),
        TABLE,
        DISTINCT,
        i64(value=[0, 1, 2]),
    ),
    row(
        "index_put_accumulate",
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        TABLE,
        PLACES,
        f32("B", 3),
    ),
    row("index_put_mask", lambda x, m: x.index_put((m,), torch.tensor(0.0)), f32("B", 3), boolean("B", 3)),
    row("index_add", lambda x, i, v: x.index_add(0, i, v), TABLE, PLACES, f32("B", 3)),
    row("writes_to_equal_zeros", equal_zeros, f32("B", 3), i64(value=[0])),
    row(
        "index_add_f16",
        lambda x, i, v: x.index_add(0, i, v),
        f16(2, 3),
        i64(3000, value=[1]),
        f16(3000, 3, value=[0.1]),
    ),
    row("index_add_alpha", lambda x, i, v: x.index_add(1, i, v, alpha=2), f32("B", 5), DISTINCT, f32("B", 3)),
    row("index_copy", lambda x, i, v: x.index_copy(0, i, v), TABLE, DISTINCT, f32(3, 3)),
    row("index_fill", lambda x, i: x.index_fill(1, i, -1.0), f32("B", 5), DISTINCT),
    row("index_reduce", lambda x, i, v: x.index_reduce(0, i, v, "amax"), TABLE, PLACES, f32("B", 3)),
    row(
        "index_reduce_alone",
        lambda x, i, v: [x.index_reduce(0, i, v, how, include_self=False) for how in ("prod", "mean", "amax", "amin")],
        *(TABLE, PLACES, f32("B", 3)),
    ),
    row("index_reduce_mean", lambda x, i, v: x.index_reduce(0, i, v, "mean"), TABLE, PLACES, f32("B", 3)),
    row("select_scatter", lambda x, v: x.select_scatter(v, 1, -1), f32("B", 3), f32("B")),
    row("select_scatter_apart", lambda x, v: x.select_scatter(v, 0, 1), f32("B", "S"), f32("S")),
    row(
        "slice_scatter_edges",
        lambda x, v: [x.slice_scatter(v, 1, a, b) for a, b in ((0, 2), (-2, 9), (1, 3))],
        *(f32("B", 6), f32("B", 2)),
    ),
    row("slice_scatter_dynamic", lambda x, v: x.slice_scatter(v, 1, 1, 5, 2), f32("B", "S"), f32("B", 2)),
    row("slice_scatter", lambda x, v: x.slice_scatter(v, 1, 1, 5, 2), f32("B", 6), f32("B", 2)),
    row("diagonal_scatter", lambda x, v: x.diagonal_scatter(v), f32(3, 3), f32(3)),
    row("diagonal_scatter_of_integers", lambda x, v: x.diagonal_scatter(v.long()), f32(3, 3), f32(3)),
    row("diagonal_scatter_below", lambda x, v: x.diagonal_scatter(v, -1, 1, 2), f32("B", 4, 5), f32("B", 3)),
    row("diagonal_scatter_square", lambda x: (x @ x.mT).diagonal_scatter(x[..., 0], 0, 1, 2), f32("B", "S", 4)),
    row("scatter_at_a_number", lambda x, i: x.scatter(-1, i, 0.5), f32(4), i64(value=1)),
    row("scatter", lambda x, i, v: x.scatter(1, i, v), f32(2, 4), ROWS, f32(2, 3)),
    row("scatter_value", lambda x, i: x.scatter(1, i, 2.5), f32("B", 5), i64("B", 2, low=0, high=5)),
    row("scatter_dim_0", lambda x, i, v: x.scatter(0, i, v), f32(4, 2), i64(value=[[3, 0], [1, 2]]), f32(3, 2)),
    row(
        "scatter_add",
        lambda x, i, v: x.scatter_add(1, i, v),
        f32("B", 5),
        i64("B", 4, low=0, high=5),
        f32("B", 4),
    ),
    row(
        "scatter_multiply",
        lambda x, i, v: x.scatter(1, i, v, reduce="multiply"),
        *(f32("B", 5), i64("B", 4, low=0, high=5), f32("B", 4)),
    ),
    row(
        "scatter_reduce_amax",
        lambda x, i, v: x.scatter_reduce(1, i, v, "amax"),
        *(f32("B", 5), i64("B", 4, low=0, high=5), f32("B", 4)),
    ),
    row(
        "scatter_reduce_sum_alone",
        lambda x, i, v: x.scatter_reduce(1, i, v, "sum", include_self=False),
        *(f32("B", 5), i64("B", 4, low=0, high=5), f32("B", 4)),
    ),
    row(
        "scatter_reduce_mean",
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        *(f32(4, 2), i64("B", 2, low=0, high=4), f32("B", 2)),
    ),
    row(
        "scatter_half_beyond_its_range",  # torch rounds the whole sum, which is within it
        lambda x, i, v: (x.scatter_add(0, i, v), x.scatter_reduce(0, i, v, "sum")),
        *(f16(value=[-65504.0]), i64(value=[0, 0, 0]), f16(value=[-65504.0, 65504.0, 65504.0])),
    ),
    row(
        "scatter_reduce_int",
        lambda x, i, v: [x.scatter_reduce(0, i, v, how) for how in ("sum", "prod", "mean", "amax", "amin")],
        *(i64(4, 2), i64("B", 2, low=0, high=4), i64("B", 2)),
    ),
    row(
        "scatter_reduce_int_alone",
        lambda x, i, v: [x.scatter_reduce(0, i, v, how, include_self=False) for how in ("prod", "amax", "amin")],
        *(i64(4, 2), i64("B", 2, low=0, high=4), i64("B", 2)),
    ),
    row("scatter_scalar", lambda x, i, v: (x.scatter(0, i, v), x.scatter_add(0, i, v)), f32(), i64(value=0), f32()),
    row("scatter_one_hot", lambda i: torch.zeros(i.shape[0], 5).scatter_(1, i[:, None], 1.0), PLACES),
    row("masked_scatter", lambda x, m, v: x.masked_scatter(m, v), f32("B", 3), boolean("B", 3), f32("B", 3)),
    row(
        "masked_scatter_rows", lambda x, m, v: x.masked_scatter(m[..., None], v), f32("B", 3), boolean("B"), f32("B", 3)
    ),
    row("put", lambda x, i, v: x.put(i, v), TABLE, i64(value=[14, 0, 7]), f32(3)),
    # embeddings
    row("embedding", lambda i, w: F.embedding(i, w), i64("B", "S", low=0, high=5), TABLE),
    mod("embedding_module", lambda: nn.Embedding(5, 3), i64("B", low=0, high=5)),
    mod("embedding_padding", lambda: nn.Embedding(5, 3, padding_idx=0), i64("B", 4, low=0, high=5)),
    mod("embedding_i32", lambda: nn.Embedding(5, 3), i32("B", low=0, high=5)),
    mod("embedding_f16", lambda: nn.Embedding(5, 3).half(), i64("B", low=0, high=5)),
    mod("embedding_max_norm", lambda: nn.Embedding(5, 3, max_norm=0.5), i64(4, low=0, high=5)),
    mod("embedding_bag_mean", lambda: nn.EmbeddingBag(5, 3), i64("B", 4, low=0, high=5)),
    mod("embedding_bag_of_any_length", lambda: nn.EmbeddingBag(5, 3), i64("B", "T", low=0, high=5)),
    mod("embedding_bag_sum", lambda: nn.EmbeddingBag(5, 3, mode="sum"), i64("B", 4, low=0, high=5)),
    mod(
        "embedding_bag_offsets",
        lambda: nn.EmbeddingBag(5, 3, mode="max"),
        i64(6, low=0, high=5),
        i64(value=[0, 2, 4]),
    ),
    row(
        "embedding_bag_without_padding",
        lambda w, i, o: [F.embedding_bag(i, w, o, mode=mode, padding_idx=2) for mode in ("sum", "mean", "max")],
        *(TABLE, i64(value=[0, 2, 3, 4, 2, 2]), i64(value=[0, 2, 4])),
    ),
    row(
        "embedding_bag_odd",
        lambda w, i, o: [
            F.embedding_bag(i, w, o, mode=mode, padding_idx=p) for mode in ("sum", "max") for p in (None, 3)
        ],
        *(
            f32(value=[[nan, 1.0], [2.0, 3.0], [inf, nan], [4.0, -inf]]),
            i64(value=[3, 0, 1, 2, 1]),
            i64(value=[0, 2, 2, 3]),
        ),
    ),
    row(
        "embedding_bag_weighted",
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, include_last_offset=True),
        *(TABLE, i64(6, low=0, high=5), i64(value=[0, 0, 4, 6]), f32(6)),
    ),
    row("embedding_bag_dynamic", lambda i: F.embedding_bag(i, torch.eye(5), mode="max"), i64("B", 4, low=0, high=5)),
    row("one_hot", lambda i: F.one_hot(i, 5), i64("B", "S", low=0, high=5)),
    row("one_hot_of_size", lambda i: F.one_hot(i.fmod(2), i.shape[1]), i64("B", "S", low=0, high=5)),
    row("one_hot_float", lambda i: F.one_hot(i, 5).float() @ torch.arange(10.0).view(5, 2), PLACES),
    # positions that depend on the data
    row("masked_select", lambda x, m: torch.masked_select(x, m), f32("B", 3), boolean("B", 3)),
    row("nonzero", lambda x: x.nonzero(), f32(value=SPARSE)),
    row("nonzero_dynamic", lambda x: (x > 0).nonzero(), f32("B", "S")),
    row(
        "nonzero_static",
        lambda x: [torch.nonzero_static(x, size=n, fill_value=f) for n, f in ((2, -1), (9, 7), (0, -1))],
        f32(value=SPARSE),
    ),
    row("nonzero_static_dynamic", lambda x: torch.nonzero_static(x > 0, size=20), f32("B", "S")),
    row("nonzero_counted_alone", lambda x: torch.isfinite(x.nonzero()), f32("B", "S")),
    row("nonzero_tuple", lambda x: x.nonzero(as_tuple=True), f32(value=SPARSE)),
    row("where_positions_1d", lambda x: torch.where(x > 0), f32("B")),
    row("where_positions", lambda x: torch.where(x > 0), f32("B", 3)),
    row("argwhere", lambda x: torch.argwhere(x > 0), f32("B", 3)),
    row("unique", lambda x: torch.unique(x), i64("B", 3)),
    row("unique_counts", lambda x: torch.unique(x, return_inverse=True, return_counts=True), i64("B", 3)),
    row(
        "unique_beside_nan",
        lambda x: (torch.unique(x), *torch.unique(x, return_inverse=True, return_counts=True)),
        f32(value=[nan, 1.0, nan, 0.0, -2.0, 1.0]),
    ),
    row(
        "unique_rows_beside_nan",
        lambda x: torch.unique(x.reshape(-1, 2), dim=0, return_inverse=True, return_counts=True),
        f32(value=[1.0, nan, 0.0, 0.0, 1.0, nan, 0.0, 0.0]),
    ),
    row(
        "masked_by_a_float",
        lambda x: torch.where(x > 0, torch.tensor(-2.5).to(x.dtype), x).masked_fill(x > 1, 300.75),
        i64(value=[1, -1, 3]),
    ),
    row("put_a_float", lambda x: x.index_put((x > 0,), torch.tensor(2.5)), i64(value=[1, -1, 3])),
    row("unique_consecutive", lambda x: torch.unique_consecutive(x), i64(8, low=0, high=3)),
    # searching
    row("searchsorted", lambda s, x: torch.searchsorted(s.sort(-1).values, x), f32("B", 5), f32("B", 3)),
    row(
        "searchsorted_right",
        lambda s, x: torch.searchsorted(s, x, right=True),
        i64(value=[1, 3, 3, 5]),
        i64("B", 3),
    ),
    row("searchsorted_sorter", lambda s, x: torch.searchsorted(s, x, sorter=s.argsort(-1)), f32("B", 5), f32("B", 3)),
    row("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), f32("B", 3)),
    row(
        "bucketize_right_i32",
        lambda x, b: torch.bucketize(x, b, right=True, out_int32=True),
        i64("B", 3),
        i64(value=[-2, 0, 3]),
    ),
    row("isin", lambda x: torch.isin(x, torch.tensor([0, 2, 4])), i64("B", 3, low=0, high=6)),
    row("isin_number", lambda x: (torch.isin(x, 2), torch.isin(2, x)), i64("B", 3)),
    row(
        "isin_fraction",
        lambda x: (torch.isin(x, 2.5), torch.isin(2.5, x), torch.isin(x, torch.tensor([2.5, 1]))),
        i64("B", 3),
    ),
    row("isin_out_of_range", lambda x: torch.isin(-2, x), u8(value=[254, 3, 1])),
    row("isin_out_of_range_sorted", lambda x: torch.isin(-2, x), u8(value=[254, 3, 1] * 4)),
    row("isin_invert", lambda x, y: torch.isin(x, y, invert=True), i64("B", 3), i64("N")),
    row("gather_f16", lambda x, i: x.gather(1, i), f16("B", 5), i64("B", 3, low=0, high=5)),
    # nan, infinities, signed zeros; tensors without elements, without axes, with axes of one
    row(
        "odd_chosen",
        lambda x, i: (1 / x[i], 1 / x.take(i), x.masked_fill(x.isnan(), 0.0)),
        f32(value=ODD),
        i64(value=[3, 0, 4]),
    ),
    row(
        "odd_scattered",
        lambda x, i, v: (x.scatter(0, i, v), x.index_add(0, i, v)),
        f32(6),
        i64(value=[3, 0, 4]),
        f32(value=[nan, inf, -0.0]),
    ),
    row(
        "odd_scatter_extremes",
        lambda x, i, v: (x.scatter_reduce(0, i, v, "amax"), x.scatter_reduce(0, i, v, "amin")),
        *(f32(6), i64(value=[3, 0, 3]), f32(value=[nan, inf, 1.0])),
    ),
    row(
        "odd_searchsorted",
        lambda s, x: (torch.searchsorted(s, x), torch.bucketize(x, s, right=True)),
        *(f32(value=[-inf, -1.0, 0.0, inf]), f32(value=ODD)),
    ),
    row("empty_indices", lambda x, i: (x[i], x.index_select(0, i), F.embedding(i, x)), TABLE, i64(0)),
    row(
        "take_along_dim_past_the_end", lambda x, i: torch.take_along_dim(x, i, 1), f32(2, 5), i64(2, 3, low=-9, high=12)
    ),
    row("empty_gathered", lambda x, i: (x.gather(0, i), torch.take_along_dim(x, i, 0)), TABLE, i64(0, 3)),
    row("empty_scattered", lambda x, i, v: (x.scatter(0, i, v), x.scatter_add(0, i, v)), TABLE, i64(0, 3), f32(0, 3)),
    row(
        "into_no_rows",
        lambda x, i, v: (x.index_fill(1, i, -1.0), x.index_copy(1, i, v), x.index_add(1, i, v)),
        f32(0, 5),
        DISTINCT,
        f32(0, 3),
    ),
    row("empty_added", lambda x, i, v: (x.index_add(0, i, v), x.index_copy(0, i, v)), TABLE, i64(0), f32(0, 3)),
    row("empty_rows", lambda x, m: (x.masked_fill(m, 1.0), x[:, 0], x.gather(1, m.long())), f32(0, 3), boolean(0, 3)),
    row("scalar_index", lambda x, i: (x[i], x.index_select(0, i.reshape(1)), F.embedding(i, x)), TABLE, i64(value=3)),
    row("size_one_table", lambda x, i: (x[i], x.gather(0, i[:, None])), f32(1, 1), i64(value=[0, 0])),
)
