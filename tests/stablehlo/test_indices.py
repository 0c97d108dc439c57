"""Indices: negative ones where torch counts from the end; a run with one beyond an axis ends, and touches nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ir
from ir.opening import open_artifact

X = torch.arange(20.0).reshape(4, 5) + 1
READS = {
    "take": lambda x, i: torch.take(x, i),
    "index": lambda x, i: x[i + 0],
    "index_of_columns": lambda x, i: x[:, i],
    "index_of_two": lambda x, i: x[i, i],
    "select": lambda x, i: x[i[0].item()],
    "index_select": lambda x, i: x.index_select(0, i + 0),
    "embedding": lambda x, i: F.embedding(i + 0, x),
    "gather": lambda x, i: x.gather(0, i[:, None] + 0),
    "of_a_branch": lambda x, i: torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[i] * 2, (x, i)),
}
WRITES = {
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "put": lambda x, i: x.put(i, torch.ones(2)),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(5)),
    "index_put_of_two": lambda x, i: x.index_put((i, i), torch.tensor(9.0)),
    "index_put_added": lambda x, i: x.index_put((i,), torch.ones(5), accumulate=True),
    "scatter": lambda x, i: x.scatter(0, i[:, None] + 0, 7.0),
    "index_add": lambda x, i: x.index_add(0, i + 0, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i + 0, x[:2]),
    "index_reduce": lambda x, i: x.index_reduce(0, i + 0, x[:2], "amax"),
}
LINE = r"\n  at .*test_indices\.py:\d+"  # where an error says that the model asked for it
PLACES = ([0, 2], [-1, 0], [-5, 1], [4, 1], [19, 7], [10**6, 0], [-(10**6), 0], [2**32, 2**40])


@pytest.mark.parametrize("sizes", [None, ({0: "rows"}, None)], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_places_that_torch_takes_and_refuses(name, sizes):
    function = {**READS, **WRITES}[name]
    program = ir.export(function, (X, torch.tensor([0, 2])), target="stablehlo", dynamic_shapes=sizes)
    for places in map(torch.tensor, PLACES):
        try:
            expected = function(X, places)
        except (IndexError, RuntimeError):
            with pytest.raises(ir.RefusedError, match=rf"(out of range|select has the index).*{LINE}"):
                program.runner(X, places)  # past what the program looks at before a run
        else:
            torch.testing.assert_close(program(X, places), expected)


@pytest.mark.parametrize("sizes", [None, ({0: "rows"}, {0: "rows"}, None), ({0: "rows"}, {0: "rows"}, {0: "n"})])
@pytest.mark.parametrize("count", [0, 7])
def test_a_mask_picks_no_more_than_its_source_has(count, sizes):
    mask = torch.zeros(4, 5, dtype=torch.bool)
    function = lambda x, m, v: x.masked_scatter(m, v)  # noqa: E731
    source = torch.arange(2.0 if count == 0 and sizes and sizes[2] else float(count))
    program = ir.export(function, (X, mask, source), target="stablehlo", dynamic_shapes=sizes)
    source = source[:count]
    for hits in (count, count + 1, 20):
        mask = (torch.arange(20) < hits).view(4, 5)
        if hits == count:
            torch.testing.assert_close(program(X, mask, source), function(X, mask, source))
        else:
            with pytest.raises(ir.RefusedError, match=f"masked_scatter has an index that is out of range{LINE}"):
                program(X, mask, source)


@pytest.mark.parametrize("name", ["model.mlir", "model.vmfb"])
def test_a_file_tells_what_it_asserts(name, tmp_path):
    ir.export(READS["index"], (X, torch.tensor([0, 2])), target="stablehlo", path=tmp_path / name)
    opened = open_artifact(tmp_path / name)
    with pytest.raises(ir.RefusedError, match=f"index has an index that is out of range{LINE}"):
        opened(X, torch.tensor([4, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32, torch.uint8], ids=str)
def test_the_median_of_nothing_is_torchs(dtype):
    program = ir.export(lambda x, y: y[x > 0].median(), (X, X.to(dtype)), target="stablehlo")
    for x in (X, -X, X - 20, X - 19, X - 18):
        expected = X.to(dtype)[x > 0].median()
        torch.testing.assert_close(program(x, X.to(dtype)), expected, equal_nan=True)


def test_fixed_places_are_not_asked_for():
    table = torch.tensor([3, 0, 0])
    text = ir.export(lambda x: x[table] + x.index_select(0, table), (X,), target="stablehlo", verify=True).artifact.text
    assert "cf.assert" not in text


def test_an_axis_of_no_elements_has_no_places():
    sizes = ({0: "rows"}, {0: "n"})
    program = ir.export(lambda x, i: x[i], (X, torch.tensor([0, 2])), target="stablehlo", dynamic_shapes=sizes)
    assert program(X[:0], torch.zeros(0, dtype=torch.int64)).shape == (0, 5)
    with pytest.raises(ir.RefusedError, match="out of range"):
        program.runner(X[:0], torch.zeros(1, dtype=torch.int64))
