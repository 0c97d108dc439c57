"""Rotary embeddings as models write them become one node; what is none, or turns halves by other angles, stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ir
from ir.passes.fuse_rotary import fuse_rotary
from tests.ir.interpret import run


class Rotary(nn.Module):
    """Queries [B, 3, S, 8] turned by angles [B or 1, S, 4], or the front of [B, 3, S, 12] in the partial form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x, angles):
        form = self.form
        neighbours = "interleaved" in form
        if neighbours:
            table = torch.repeat_interleave(angles, 2, dim=-1)
        else:
            table = torch.cat((angles, angles + 1 if form == "angles" else angles), -1)
        if form == "crossed":
            table = torch.repeat_interleave(angles, 2, dim=-1)
        cos, sin = table.cos() * 0.9, table.sin() * 0.9
        cos, sin = (t.to(x.dtype).unsqueeze(1) for t in (cos, sin.roll(1, -1) if form == "rolled" else sin))
        whole = x
        x = x[..., :8] if form.startswith("partial") else x
        if neighbours:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        elif form == "chunk":
            a, b = x.chunk(2, -1)
            turned = torch.cat((-b, a), -1)
        elif form == "backwards":
            turned = torch.cat((x[..., 4:], -x[..., :4]), -1)
        else:
            turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        if form == "alpha":
            return torch.add(x * cos, turned * sin, alpha=2)
        y = sin * turned + x * cos if form == "swapped" else x * cos + turned * sin
        return torch.cat([y, whole[..., 8:]], -1) if form.startswith("partial") else y


def captured(form, dtype=torch.float32, batch=2):
    args = torch.randn(2, 3, 5, 12 if form.startswith("partial") else 8).to(dtype), torch.randn(batch, 5, 4)
    shapes = {"x": {0: "b", 2: "s"}, "angles": {0: "b", 1: "s"} if batch == 2 else {1: "s"}}
    return ir.capture(Rotary(form), args, dynamic_shapes=shapes), args


FORMS = ("half", "swapped", "chunk", "partial", "interleaved", "partial_interleaved")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_written_out_rotary_embeddings_are_one_node(form, batch, dtype):
    graph, args = captured(form, dtype, batch)
    fused = ir.check(fuse_rotary(graph))
    ops = [n.op for n in fused.nodes]
    assert ops.count("ir::rotary_embedding") == 1 and ops[-1] == "ir::rotary_embedding"
    assert not {"aten::cat", "aten::repeat_interleave", "aten::stack", "aten::neg", "aten::add"} & {*ops}
    (expected,), (got,) = run(graph, *args), run(fused, *args)
    assert got.dtype == dtype and torch.allclose(got, expected, atol=1e-6 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("form", ["angles", "rolled", "crossed", "backwards", "alpha"])
def test_what_is_no_rotary_embedding_stays(form):
    graph, _ = captured(form)
    assert fuse_rotary(graph) is graph


class Layers(nn.Module):
    """Queries and keys of two layers by one table, whose cosines are a result, too."""

    def forward(self, x, angles):
        table = torch.cat((angles, angles), -1)
        cos, sin = table.cos().unsqueeze(1), table.sin().unsqueeze(1)
        for _ in range(2):
            x = x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin
        return x, cos


def test_one_table_serves_all_layers():
    args = torch.randn(2, 3, 5, 8), torch.randn(1, 5, 4)
    graph = ir.capture(Layers(), args)
    fused = ir.check(fuse_rotary(graph))
    ops = [n.op for n in fused.nodes]
    assert ops.count("ir::rotary_embedding") == 2 and ops.count("aten::squeeze") == 2 and ops.count("aten::sin") == 1
    for a, b in zip(run(graph, *args), run(fused, *args), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("target", ["eager", "nnef"])
def test_any_target_expands_the_node(target):
    graph, args = captured("interleaved" if target == "eager" else "half")
    ir.export(fuse_rotary(graph), target=target).verify(args)
