"""Type promotion against torch's own answers."""

from __future__ import annotations

import itertools

import pytest
import torch

import ir
from ir.graph import Value
from ir.importer.schema import DTYPES
from ir.passes.promote import mixes, promote, promote_types, result_type
from ir.types import DType, TensorType

TYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
         torch.float32, torch.float64, torch.complex64, torch.complex128]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), itertools.product(TYPES, TYPES))
def test_promote_types(a, b):
    assert promote_types(DTYPES[a], DTYPES[b]) is DTYPES[torch.promote_types(a, b)]


def test_result_type():
    operands = [(t, r) for t in TYPES for r in (0, 1)] + [(True, None), (3, None), (2.5, None)]
    for (a, ra), (b, rb) in itertools.product(operands, operands):
        if ra is None and rb is None:
            continue
        real = [torch.ones((1,) * r, dtype=t) if r is not None else t for t, r in ((a, ra), (b, rb))]
        ours = [Value("x", TensorType(DTYPES[t], (1,) * r)) if r is not None else t for t, r in ((a, ra), (b, rb))]
        expected = torch.result_type(
            *real
        )  # bcomplex32 since 2.14, which capture refuses: torch computes nothing in it
        assert result_type(ours) is DTYPES.get(expected, DType.complex64), (a, ra, b, rb)


def test_operands_are_cast_once():
    def fn(x, n):
        return x + n, x * n, n > x

    graph = ir.check(promote(ir.capture(fn, (torch.ones(2), torch.ones(2, dtype=torch.int64)))))
    assert [n.op for n in graph.nodes] == ["ir::cast", "aten::add", "aten::mul", "aten::gt"]
    same = ir.capture(lambda x: x + 1, (torch.ones(2),))
    assert promote(same).nodes[0] is same.nodes[0]


@pytest.mark.parametrize(
    ("fn", "mixed"),
    [
        (lambda x, n: torch.outer(x, n), True),
        (lambda x, n: torch.outer(x > 0, n), True),
        (lambda x, n: torch.concatenate([x, n]), True),
        (lambda x, n: torch.gather(x, 0, n), False),
        (lambda x, n: torch.index_select(n, 0, n.int()), True),  # either type of index is right
        (lambda x, n: x.index_fill(0, n, 2), False),
        (lambda x, n: x.index_put((n > 0,), x[:1]), False),
        (lambda x, n: n.masked_fill(x > 0, 2), False),
        (lambda x, n: torch.nn.functional.cross_entropy(x.expand(2, 2), n), False),
    ],
)
def test_numbers_are_told_from_indices_and_masks_by_what_torch_takes(fn, mixed):
    graph = ir.capture(fn, (torch.ones(2), torch.zeros(2, dtype=torch.int64)))
    assert any(mixes(n, graph.context) for n in graph.nodes) is mixed


def test_what_is_computed_in_a_wider_type_is_cast_back():
    def fn(x, w):
        return torch.nn.functional.layer_norm(x, (4,), w)

    graph = ir.check(promote(ir.capture(fn, (torch.ones(2, 4, dtype=torch.float16), torch.ones(4)))))
    assert [n.op for n in graph.nodes] == ["ir::cast", "aten::layer_norm", "ir::cast"]
    assert [n.outputs[0].type.dtype.short for n in graph.nodes] == ["f32", "f32", "f16"]


@pytest.mark.parametrize(
    "fn",
    [lambda x, y: torch.broadcast_tensors(x, y), lambda x, y: torch.kron(x, y), lambda x, y: torch.block_diag(x, y)],
)
def test_an_operand_without_dimensions_is_never_narrowed(fn):
    graph = promote(ir.capture(fn, (torch.ones(3, dtype=torch.float16), torch.ones(()))))
    casts = [n for n in graph.nodes if n.op == "ir::cast" and n.args["self"] in graph.inputs]
    assert all(n.args["self"].type.dtype is DType.float16 for n in casts)
