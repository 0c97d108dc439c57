"""Complex tensors taken out of a graph: real graphs that compute what torch computes, at the border packed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import ir
from ir.decompositions.complex.rules import RULES
from ir.graph import Graph
from ir.importer.schema import packet_of
from ir.passes.split_complex import ONLY, PARTWISE, PRODUCTS, split_complex
from tests.ir.interpret import run


def c64(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))


def packed(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def split(fn, *args: Tensor) -> Graph:
    graph = ir.capture(fn, args)
    return ir.check(split_complex(graph, graph.context, lambda node: False))


FUNCTIONS = {
    "arithmetic": lambda x, y: (x * y - 2j * x, x / y, 1 - y, 3 / x, x**3),
    "parts": lambda x, y: (x.real, y.imag, x.abs(), y.angle(), x.conj() * y),
    "moves": lambda x, y: (x.t()[1:], torch.cat([x, y]), x.flip(0), torch.stack([x, y], -1).sum(-1)),
    "mixed": lambda x, y: (x * y.real, y.abs() - x, torch.where(x.real > 0, x, 1.0), torch.cat([x, y.real])),
    "products": lambda x, y: (x @ y.mT, torch.einsum("ij,kj->ik", x, y), torch.nn.functional.linear(x, y, y[:, 0])),
    "functions": lambda x, y: (x.exp(), x.log(), y.sqrt(), torch.tanh(x), torch.acos(y), x**y),
    "new": lambda x, y: (torch.full((2,), 1 + 2j) * x[0, 0], torch.ones_like(x), x.new_zeros(3), torch.eye(3) + 0j),
    "transforms": lambda x, y: (torch.fft.fft2(x), torch.fft.irfft(y, n=7), torch.fft.hfft(x, norm="ortho")),
    "packing": lambda x, y: torch.view_as_complex(torch.view_as_real(x) * 2) + y,
    "writes": lambda x, y: x.clone().mul_(y).add_(1j),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_real_graph_computes_the_same(name):
    x, y = c64(3, 3), c64(3, 3) + 0.5
    graph = split(FUNCTIONS[name], x, y)
    values = [v for n in graph.nodes for v in n.outputs]
    assert not any(v.type.dtype.is_complex for v in (*graph.inputs, *values, *graph.weights))
    expected = FUNCTIONS[name](x, y)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, torchs, value in zip(run(graph, packed(x), packed(y)), expected, graph.outputs, strict=True):
        torch.testing.assert_close(ours, packed(torchs), rtol=1e-4, atol=1e-5)
        assert value.type.shape == tuple(ours.shape)


@pytest.mark.parametrize("name", sorted({*PARTWISE, *PRODUCTS, *ONLY}))
def test_rows_name_torch_ops(name):
    packet = packet_of(f"aten::{name}")
    assert packet is not None
    elements = [*PARTWISE.get(name, ()), *PRODUCTS.get(name, ()), *ONLY.get(name, {})]
    known = {a.name for o in packet.overloads() for a in getattr(packet, o)._schema.arguments}
    assert known & {e for e in elements if e} or name in ("zeros", "empty")  # which have no elements to take


def test_rules_name_torch_ops():
    assert [op for op in RULES if packet_of(op.split(".")[0]) is None] == []


def test_a_graph_of_reals_is_left_alone():
    graph = ir.capture(lambda x: x.exp() + 1, (torch.ones(2),))
    assert split_complex(graph, graph.context, lambda node: False) is graph


def test_linear_ops_are_two_nodes_and_a_view_that_comes_back_is_none():
    graph = split(lambda x: x.t(), c64(2, 3))
    assert [n.op for n in graph.nodes] == ["aten::select", "aten::t", "aten::select", "aten::t", "aten::stack"] or [
        n.op for n in graph.nodes
    ] == ["aten::select", "aten::select", "aten::t", "aten::t", "aten::stack"]
    graph = split(lambda x: torch.view_as_real(x) + 1, c64(2, 3))
    assert [n.op for n in graph.nodes] == ["aten::add"]


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_complex_inputs_outputs_weights_and_updates(target):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(c64(3))
            self.register_buffer("state", c64(2, 3))

        def forward(self, x, scale):
            self.state.mul_(scale)
            return {"y": x * self.weight + self.state, "magnitude": x.abs()}

    args = (c64(2, 3).conj(), torch.tensor(2.0))
    program = ir.export(Model(), args, target=target, verify=True)
    out = program(*args)
    assert out["y"].dtype == torch.complex64 and out["magnitude"].dtype == torch.float32


def test_the_onnx_file_has_a_last_dimension_of_two(tmp_path):
    import onnx

    program = ir.export(
        lambda x: torch.fft.fft(x), (c64(3, 4),), path=tmp_path / "m.onnx", dynamic_shapes=({0: "batch"},), verify=True
    )
    model = onnx.load(tmp_path / "m.onnx")
    for value in (*model.graph.input, *model.graph.output):
        sizes = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        assert sizes == ["batch", 4, 2] and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert program(c64(5, 4)).shape == (5, 4)


def test_what_is_known_on_real_numbers_only_says_so():
    with pytest.raises(ir.UnsupportedOpsError, match="known on real tensors only") as caught:
        ir.export(lambda x: x.as_strided((2, 2), (1, 2)), (torch.randn(3, 3, dtype=torch.complex64),), target="onnx")
    assert caught.value.missing[0].op not in caught.value.missing[0].nearest


@ir.custom_op("complextest::turn")
def turn(x: Tensor, by: Tensor) -> Tensor:
    return x * torch.polar(torch.ones_like(by), by)


class Turn(nn.Module):
    def forward(self, x, by):
        return turn(x, by).conj()


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_custom_op_with_complex_operands_is_expanded(target):
    ir.export(Turn(), (c64(2, 3), torch.randn(3)), target=target, verify=True)


def test_a_handler_of_a_custom_op_gets_them_packed():
    seen = []

    def handler(h, x, by):
        seen.append(x.type.shape)
        re, im = (h.emit("Gather", x, i, axis=-1) for i in (0, 1))
        cos, sin = h.emit("Cos", by), h.emit("Sin", by)
        parts = [h.emit("Sub", h.emit("Mul", re, cos), h.emit("Mul", im, sin)),
                 h.emit("Add", h.emit("Mul", re, sin), h.emit("Mul", im, cos))]  # fmt: skip
        return h.emit("Concat", *(h.unsqueeze(p, [2]) for p in parts), axis=2)

    args = (c64(2, 3), torch.randn(3))
    program = ir.export(Turn(), args, handlers={"complextest::turn": handler}, verify=True)
    assert seen == [(2, 3, 2)]
    assert not program.artifact.functions


def test_branches_take_complex_operands():
    class Model(nn.Module):
        def forward(self, x, y):
            return torch.cond(y.sum() > 0, lambda a, b: (a * b,), lambda a, b: (a + 1j,), (x, y))[0]

    for y in (torch.ones(3), -torch.ones(3)):
        ir.export(Model(), (c64(2, 3), y), verify=True)


def test_what_has_no_rule_is_refused_by_name():
    with pytest.raises(ir.UnsupportedOpsError, match="aten::linalg_eig"):
        ir.export(lambda x: torch.linalg.eigvals(x), (c64(3, 3),))
    with pytest.raises(ir.RefusedError, match="complex32"):
        ir.export(lambda x: x.chalf(), (torch.ones(3),))


class Rotary(nn.Module):
    """Attention with rotary embeddings as Llama's reference code writes them."""

    def __init__(self, dim: int = 32, heads: int = 4, length: int = 64):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        angles = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, dim // heads, 2) / (dim // heads)))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * self.freqs[: x.shape[1], None]).flatten(3).type_as(x)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = self.rotate(q), self.rotate(k)
        y = nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_rotary_embeddings_with_complex_numbers(target):
    torch.manual_seed(0)
    model, shapes = Rotary().eval(), ({0: "batch", 1: "length"},)
    program = ir.export(model, (torch.randn(2, 7, 32),), target=target, dynamic_shapes=shapes, verify=True)
    program.verify((torch.randn(3, 11, 32),))
    if target == "onnx":
        assert {n.op_type for n in program.artifact.graph}.isdisjoint({"Cos", "Sin"})  # the table is a constant


@pytest.mark.parametrize("opset", [13, 17, 20])
def test_stft_and_back(opset):
    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(64))

        def forward(self, x):
            spectrum = torch.stft(x, 64, 16, window=self.window, return_complex=True)
            return torch.istft(spectrum, 64, 16, window=self.window, length=x.shape[-1]), spectrum

    x = torch.randn(2, 480)
    program = ir.export(Echo(), (x,), opset=opset, verify=True)
    torch.testing.assert_close(program(x)[0], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["onnx", "nnef"])
def test_a_real_factor_is_a_complex_number_to_torch(target):
    """Its imaginary part is 0, which beside infinity gives nan."""

    def model(z, x):
        return z * 2, z / 2, z * x, z / x, x * z

    inf, nan = float("inf"), float("nan")
    z = torch.tensor(
        [complex(inf, 1), complex(nan, 0), complex(1, 2), complex(0, -inf), complex(3, 4), complex(inf, 1)]
    )
    x = torch.tensor([2.0, -1.0, inf, 0.5, nan, 0.0])
    program = ir.export(model, (z, x), target=target)
    for mine, theirs in zip(program(z, x), model(z, x), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
