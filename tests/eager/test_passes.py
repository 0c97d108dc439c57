"""The passes one by one: what each does to a program, equal numbers to rounding, each a switch."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ir
from eager_backend import Eager
from eager_backend.building import onednn as onednn_calls
from eager_backend.passes import FOR_CUDA, PASSES
from eager_backend.passes.inplace import FRESH
from eager_backend.passes.updates import IN_PLACE
from ir.importer.schema import op_schema
from ir.ops import may_be_view, overloads_of
from tests.eager.test_cases import assert_same

onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
IMAGE = torch.randn(2, 8, 12, 12).index_fill(1, torch.tensor([1]), 0.0)  # as `Everything` leaves it
BATCHES = ({0: "batch"},)


def compiled(model: Any, *args: Tensor, passes: Any = True, shapes: Any = None) -> ir.Exported:
    if isinstance(model, nn.Module):
        model.eval()
    return ir.export(model, args, target=Eager(optimize=passes), dynamic_shapes=shapes)


def lines(program: ir.Exported) -> str:
    """The source of the program, without the checks of its inputs."""
    text: str = program.artifact.source
    return "\n".join(t for t in text.split("\n") if "refuse_" not in t and not t.endswith(".shape"))


def assert_close(program: ir.Exported, model: Any, *args: Tensor) -> None:
    """The program and the model agree to a few units of rounding of the largest value, strides included."""
    with torch.no_grad():
        expected = model(*(a.clone() for a in args))
    actual = program(*args)
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * scale, check_stride=True)


# -- switches ----------------------------------------------------------------------------------------------------------


class Everything(nn.Module):
    """Something for every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        self.linear, self.gate = nn.Linear(16 * 144, 512), nn.Linear(16 * 144, 512)
        self.scale = nn.Parameter(0.2 * torch.rand(512))

    def forward(self, x: Tensor) -> Tensor:
        x.index_copy_(1, torch.tensor([1]), torch.zeros(1, 1, 1, 1).expand(x.shape[0], 1, 12, 12))
        keys = x[:, :4].unsqueeze(2).expand(-1, -1, 2, -1, -1).reshape(-1, 8, 12, 12)
        x = F.scaled_dot_product_attention(x, keys, keys)
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        x = self.linear(x) * self.scale * 2.0 * self.gate(x)
        return torch.tanh(x + torch.arange(512, dtype=torch.float32).sqrt())


@pytest.mark.parametrize("off", [None, *PASSES])
def test_each_pass_is_a_switch(off: str | None) -> None:
    model = Everything().eval()
    program = compiled(model, IMAGE, passes=[p for p in PASSES if p != off], shapes=BATCHES)
    assert program.target.chosen == tuple(p for p in PASSES if p != off)  # type: ignore[attr-defined]
    assert_close(program, model, IMAGE)
    assert_close(program, model, torch.randn(5, 8, 12, 12).index_fill(1, torch.tensor([1]), 0.0))


@pytest.mark.parametrize("name", [p for p in PASSES if p not in FOR_CUDA])
def test_each_pass_alone_changes_the_program(name: str) -> None:
    model = Everything().eval()
    program = compiled(model, IMAGE, passes=[name])
    assert lines(program) != lines(compiled(model, IMAGE, passes=False))
    assert_close(program, model, IMAGE)


def test_the_page_lists_the_passes_in_their_order() -> None:
    page = Path(__file__).parents[2] / "docs" / "eager.md"
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE) == [*PASSES]


def test_an_unknown_pass() -> None:
    with pytest.raises(ValueError, match="no pass fusing; there are attention, constants"):
        Eager(optimize=["fusing"])


# -- constants ---------------------------------------------------------------------------------------------------------


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.count += 1
        mask = torch.full((4, 4), 2.0).triu()
        return x @ self.weight.t().double().float() + 1, mask * 2, self.weight.t(), x * (self.count * 2), mask @ x


def test_constants_are_computed_once_and_never_handed_out() -> None:
    x = torch.randn(4, 6)
    model = Masked()
    program, reference = compiled(model, x, passes=["constants"]), Masked()
    reference.load_state_dict(model.state_dict())
    assert "triu(" not in lines(program) and ".to(" not in lines(program)
    for _ in range(3):  # the buffer that the program writes is no constant
        results = program(x)
        assert_same(results, reference(x))
        for result in (results[0], results[1], results[3], results[4]):
            result.detach().zero_()


def test_random_numbers_are_drawn_at_every_call() -> None:
    program = compiled(lambda x: x + torch.rand(4), torch.zeros(4))
    assert not torch.equal(program(torch.zeros(4)), program(torch.zeros(4)))


def test_new_weights() -> None:
    model = Everything().eval()
    program = compiled(model, IMAGE)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.5)
    with pytest.raises(AssertionError):
        assert_close(program, model, IMAGE)
    program.artifact.refresh()
    assert_close(program, model, IMAGE)


# -- convolutions ------------------------------------------------------------------------------------------------------


def test_a_convolution_of_nothing_in_another_type_is_torch_s() -> None:
    """torch looks at element types where there are elements."""
    x = torch.zeros(0, 3, 6, dtype=torch.float64)
    program = compiled(lambda x: F.conv1d(x, torch.ones(2, 3, 2)), x)
    assert_same([program(x)], [F.conv1d(x, torch.ones(2, 3, 2))])


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_batch_norm_folds(rank: int, bias: bool, affine: bool) -> None:
    conv = getattr(nn, f"Conv{rank}d")(4, 6, 3, bias=bias)
    norm = getattr(nn, f"BatchNorm{rank}d")(6, affine=affine)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model = nn.Sequential(conv, norm).eval()
    x = torch.randn(2, 4, *[9] * rank)
    program = compiled(model, x)
    assert "batch_norm(" not in lines(program)
    assert_close(program, model, x)


def test_a_batch_norm_whose_convolution_is_read_elsewhere_stays() -> None:
    conv, norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8).eval()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = conv, norm

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.norm(y) + y

    program = compiled(Model(), IMAGE)
    assert "batch_norm(" in lines(program)
    assert_close(program, Model().eval(), IMAGE)


class Dense(nn.Module):
    """As in DenseNet: batch norm and ReLU over a concatenation, before the convolution."""

    def __init__(self, channels: int, **options: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * channels, **options)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        self.conv = nn.Conv2d(2 * channels, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.conv(F.relu(self.norm(torch.cat([y, y * 2], 1))))


@onednn
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_over_channels_last_is_a_product_in_place(affine: bool) -> None:
    model = Dense(8, affine=affine)
    program = compiled(model, IMAGE, shapes=BATCHES)
    assert "out=cat)" in lines(program) and ".relu_()" in lines(program) and "batch_norm(" not in lines(program)
    assert_close(program, model, IMAGE)
    assert_close(program, model, torch.randn(5, 8, 12, 12))
    other = Dense(8, affine=affine).eval()
    program.artifact.load_state_dict(other.state_dict())
    assert_close(program, other, IMAGE)


@onednn
@pytest.mark.parametrize("model", [Dense(4), Dense(8, track_running_stats=True).double()], ids=["narrow", "float64"])
def test_other_batch_norms_stay(model: Dense) -> None:
    image = IMAGE.to(model.conv.weight.dtype)
    program = compiled(model, image)
    assert "batch_norm(" in lines(program)
    assert_close(program, model, image)


class Laid(nn.Module):
    """A sum that lies as its first operand does, and a view that needs that."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.linear, self.swapped = nn.Linear(8, 8), swapped

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), x.exp()
        return (b + a).view(2, -1) if self.swapped else (a + b).permute(0, 2, 3, 1).view(-1, 8)


@pytest.mark.parametrize("swapped", [True, False])
def test_what_is_written_over_lies_as_the_result_in_torch(swapped: bool) -> None:
    model = Laid(swapped)
    assert_close(compiled(model, IMAGE), model, IMAGE)


def test_the_second_operand_is_written_over_where_both_are_rows() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        a, b = torch.mm(x, y), torch.mm(y, x)
        return (a + b) * a

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    assert "mm_1.add_(mm)" in lines(compiled(model, x, y))
    assert_close(compiled(model, x, y), model, x, y)


def test_what_lies_in_columns_or_in_rows_is_not_written_over_as_rows() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        columns, rows = y.t() * torch.mm(x, x), torch.mm(x, y)
        return (rows + columns) * rows

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    assert_close(compiled(model, x, y), model, x, y)


OVERWRITTEN = {
    "a view of it is read later": lambda y: (y * 2, y.view(-1)),
    "it is a result itself": lambda y: (y * 2, y),
    "it is read twice": lambda y: y * y + 1,
    "it is read later": lambda y: (y * 2) + y,
    "the result is larger": lambda y: y[:1] * 1 + torch.ones(3, 4),
    "the result has another type": lambda y: (y * 2).double() + torch.ones(4, dtype=torch.float64),
    "the result is a comparison": lambda y: (y > 0) & (y < 1),
    "its own operand is broadcast": lambda y: y.sum(0, keepdim=True) + y,
}


@pytest.mark.parametrize("reader", OVERWRITTEN.values(), ids=OVERWRITTEN)
def test_what_is_still_needed_is_not_written_over(reader: Any) -> None:
    x = torch.randn(3, 4)
    program = compiled(lambda x: reader(x + 1), x, passes=["inplace"])
    assert_same(program(x), reader(x + 1))


def test_results_in_memory_of_their_own_are_no_views_by_their_schemas() -> None:
    for fn in FRESH - onednn_calls.KERNELS:
        overloads = overloads_of(f"aten::{fn.__name__}")
        assert overloads and not any(may_be_view(op_schema(o)) for o in overloads), fn


def test_addcmul_over_a_dead_operand() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return torch.addcmul(y, x.exp(), y, value=0.5)

    x, y = torch.randn(3, 4), torch.randn(4)
    assert "out=exp)" in lines(compiled(model, x, y))
    assert_close(compiled(model, x, y), model, x, y)
    assert "out=" not in lines(compiled(model, y, x))  # the result is larger than what could hold it


ACTIVATIONS = nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.Hardswish(), nn.GELU(), nn.GELU("tanh"), nn.LeakyReLU(0.2)
BOUNDED = nn.ReLU(), nn.ReLU6(), nn.Hardsigmoid(), nn.Hardtanh(-2, 3)  # those of which oneDNN makes a bound of nan


@onednn
@pytest.mark.parametrize("act", ACTIVATIONS, ids=str)
def test_activations_fuse(act: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), act).eval()
    program = compiled(model, IMAGE, passes=["convolution"], shapes=BATCHES)
    assert lines(program).count("onednn_conv(") == 1 and lines(program).count(" = ") <= 4
    assert_close(program, model, IMAGE * 3)
    model = nn.Sequential(nn.Linear(64, 512), act).eval()
    x = torch.randn(64, 64)
    program = compiled(model, x, passes=["linear"], shapes=BATCHES)
    assert lines(program).count(" = ") == 1 and "onednn_linear(" in lines(program)
    assert_close(program, model, x * 3)


@onednn
@pytest.mark.parametrize("act", [*BOUNDED, nn.Mish(), nn.ELU(), nn.Softplus()], ids=str)
def test_other_activations_stay(act: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), act).eval()
    assert_close(compiled(model, IMAGE), model, IMAGE)


@onednn
@pytest.mark.parametrize("act", [*ACTIVATIONS, *BOUNDED], ids=str)
@pytest.mark.parametrize(
    "layer, x",
    [(nn.Conv2d(8, 16, 3, padding=1), IMAGE), (nn.Linear(256, 512), torch.randn(64, 256))],
    ids=["conv", "linear"],
)
def test_nan_passes_an_activation(layer: nn.Module, x: Tensor, act: nn.Module) -> None:
    x = x.clone()
    x.view(-1)[0] = math.nan
    model = nn.Sequential(layer, act).eval()
    assert model(x).isnan().any()
    assert torch.equal(compiled(model, x)(x).isnan(), model(x).isnan())


@onednn
def test_onednn_makes_a_bound_of_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were that to change, relu and its like could be fused again."""
    monkeypatch.setattr(onednn_calls, "DROPS_NAN", ())
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU())
    assert not compiled(model, IMAGE)(torch.full_like(IMAGE, math.nan)).isnan().any()


class Residual(nn.Module):
    """A block whose two branches are convolutions, and a sum that broadcasts, which must not fuse."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.a(x) + self.b(x))
        z = self.act(x + self.c(y))
        return self.c(z) + z.mean((2, 3), keepdim=True)


@onednn
@pytest.mark.parametrize("act", [nn.ReLU(), nn.SiLU()], ids=str)
def test_residual_sums_fuse(act: nn.Module) -> None:
    model = Residual(act).eval()
    program = compiled(model, IMAGE, shapes=BATCHES)
    assert len([t for t in lines(program).split("\n") if "onednn_conv_add" in t]) == 2
    x = torch.randn(3, 8, 12, 12)
    kept = x.clone()
    assert_close(program, model, x)
    assert_same(x, kept)


GEOMETRIES: dict[str, dict[str, Any]] = {
    "plain": {}, "stride": {"stride": 2, "padding": 1}, "dilation": {"dilation": 2}, "groups": {"groups": 4},
    "depthwise": {"groups": 8}, "valid": {"padding": "valid"}, "same": {"padding": "same"},
}  # fmt: skip


@onednn
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometries_and_sizes_not_seen(geometry: str, rank: int) -> None:
    model = getattr(nn, f"Conv{rank}d")(8, 16, 3, **GEOMETRIES[geometry]).eval()
    axes = {0: "batch", **{2 + i: f"side{i}" for i in range(rank)}}
    program = compiled(model, torch.randn(2, 8, *[12] * rank), passes=["convolution"], shapes=(axes,))
    for batch, side in ((2, 12), (1, 7), (5, 20)):
        assert_close(program, model, torch.randn(batch, 8, *[side] * rank))


@onednn
@pytest.mark.parametrize(
    "tail",
    [
        lambda y: y.view(y.shape[0], -1),
        lambda y: y.view(y.shape[0], 2, 4, -1).transpose(1, 2).reshape(y.shape[0], 8, -1),
        lambda y: y.permute(0, 2, 3, 1),
        lambda y: y.transpose(1, 2).contiguous().view(-1, 12),
        lambda y: torch.cat([y, y * 2], 1).mean(1),
        lambda y: F.max_pool2d(y, 2).flatten(1),
        lambda y: F.interpolate(y, scale_factor=2, mode="bilinear").sigmoid(),
        lambda y: torch.cond(y.sum() > 0, lambda v: v.view(-1) * 2, lambda v: v.view(-1) + 1, (y,)),
        lambda y: (y.view(torch.int32) ^ torch.iinfo(torch.int32).min).view(torch.float32),  # the sign
        lambda y: y.unflatten(1, (2, 4)).select(1, 0),
        lambda y: y.unbind(1)[0],
        lambda y: y[:, ::2, 1:],
    ],
)
def test_strides_behind_a_convolution(tail: Any) -> None:
    conv = nn.Conv2d(8, 8, 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = tail(self.conv(x))
            return result

    program = compiled(Model(), IMAGE)
    with torch.no_grad():
        expected = Model()(IMAGE)
    torch.testing.assert_close(program(IMAGE), expected, rtol=1e-5, atol=1e-5)


@onednn
def test_group_norm_behind_a_convolution_is_as_exact_as_torchs() -> None:
    """torch's kernel for channels last is 100 times further from float64 where a channel's mean is large."""
    conv, norm = nn.Conv2d(8, 32, 1), nn.GroupNorm(16, 32)
    with torch.no_grad():
        conv.bias.add_(100 * torch.randn(32))  # type: ignore[union-attr]
        conv.bias[1::2] = conv.bias[::2]  # type: ignore[index]
    model, image = nn.Sequential(conv, norm), torch.randn(2, 8, 48, 48)
    program = compiled(model, image, shapes=BATCHES)
    with torch.no_grad():
        own = model(image)
        actual = program(image)
        exact = model.double()(image.double())
    assert actual.stride() == own.stride()
    assert (actual - exact).abs().max() <= 2 * (own - exact).abs().max()


@onednn
def test_a_custom_body_behind_a_convolution() -> None:
    @ir.custom_op("eager_passes::rows")
    def rows(x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1) * 2

    model = nn.Conv2d(8, 8, 1)
    program = compiled(nn.Sequential(model, Call(rows)), IMAGE, shapes=BATCHES)
    assert_close(program, lambda x: model(x).flatten(1) * 2, IMAGE)


class Call(nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Any:
        return self.fn(x)


# -- linear layers -----------------------------------------------------------------------------------------------------


@contextmanager
def threads(number: int) -> Iterator[None]:
    """torch's threads, and as many as before at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Matrices(nn.Module):
    """A linear layer in each of the forms that programs have it in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 256) / 8)
        self.bias = nn.Parameter(torch.randn(256))
        self.linear = nn.Linear(256, 128)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, 128), self.weight).view(*x.shape[:2], 256)
        z = F.gelu(y) + x @ self.weight
        w: Tensor = x + self.linear(z)
        return w + torch.mm(x.view(-1, 128), self.weight).sum()


@onednn
def test_linear_layers_in_every_form() -> None:
    model, x = Matrices().eval(), torch.randn(4, 32, 128)
    program = compiled(model, x, shapes=({0: "batch", 1: "time"},))
    assert len([t for t in lines(program).split("\n") if "onednn_linear" in t]) == 4
    assert lines(program).count("onednn_linear_add(") == 2
    for batch, length in ((4, 32), (1, 1), (3, 50), (0, 5)):
        assert_close(program, model, torch.randn(batch, length, 128))


@onednn
def test_small_linear_layers_stay_with_torch() -> None:
    program = compiled(nn.Linear(64, 64), torch.randn(64, 64))
    assert "onednn" not in lines(program)
    with threads(1):
        program = compiled(nn.Linear(2048, 2048), torch.randn(1, 2048))
    assert "onednn" not in lines(program)


@onednn
def test_one_row_on_more_threads_is_onednns() -> None:
    model = nn.Sequential(nn.Linear(2048, 768), nn.ReLU(), nn.Linear(768, 64)).eval()
    x = torch.randn(1, 2048)
    with threads(2):
        program = compiled(model, x)
    assert lines(program).count("onednn_linear(") == 1
    assert_close(program, model, x)


@onednn
def test_of_one_row_on_one_thread_a_weight_that_widens_is_stored_by_columns() -> None:
    wide, narrow = nn.Linear(768, 2048).eval(), nn.Linear(2048, 768, bias=False).eval()
    for layer, stored in ((wide, True), (narrow, False)):
        x = torch.randn(1, 1, layer.in_features)
        with threads(1):
            program = compiled(layer, x)
        assert ("weight_columns" in lines(program)) == stored
        assert_close(program, layer, x)


@onednn
def test_passes_choose_for_the_sizes_that_are_named() -> None:
    model, x = nn.Linear(768, 2048).eval(), torch.randn(4, 1, 768)
    axes = ({0: "batch"},)
    usual = ir.export(model, (x,), dynamic_shapes=axes, target=Eager())
    with threads(1):
        one = ir.export(model, (x,), dynamic_shapes=axes, target=Eager(sizes={"batch": 1}))
    assert "onednn_linear" in usual.artifact.source and "weight_columns" in one.artifact.source
    for batch in (0, 1, 2, 7):
        torch.testing.assert_close(one(torch.ones(batch, 1, 768)), model(torch.ones(batch, 1, 768)))
    with pytest.raises(ir.ExportError, match="no dynamic dimension 'bach'; it has batch"):
        ir.export(model, (x,), dynamic_shapes=axes, target=Eager(sizes={"bach": 1}))


@onednn
def test_without_onednn_nothing_is_packed() -> None:
    model = Everything().eval()
    with torch.backends.mkldnn.flags(enabled=False):
        program = compiled(model, IMAGE)
        assert "onednn" not in lines(program)
        assert_close(program, model, IMAGE)


# -- numbers by channel ------------------------------------------------------------------------------------------------


class ConvNeXt(nn.Module):
    """A block as torchvision has it; `images`: what is added lies with the channels last, too."""

    def __init__(self, images: bool = True) -> None:
        super().__init__()
        self.images = images
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 512), nn.Linear(512, 8)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) if self.images else x
        y = self.down(F.gelu(self.up(self.norm(self.conv(x).permute(0, 2, 3, 1)))))
        return x + self.scale * y.permute(0, 3, 1, 2)


class Scaled(nn.Module):
    def __init__(self, layer: nn.Module, *shape: int, swapped: bool = False) -> None:
        super().__init__()
        self.layer, self.swapped = layer, swapped
        self.scale = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x) if self.swapped else self.layer(x) * self.scale


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Scaled(nn.Linear(6, 5), 5), torch.randn(3, 4, 6)),
        (Scaled(nn.Linear(6, 5, bias=False), 1, 5, swapped=True), torch.randn(4, 6)),
        (Scaled(nn.Conv2d(8, 6, 3), 6, 1, 1), IMAGE),
        (Scaled(nn.Conv1d(8, 6, 3), 1, 6, 1, swapped=True), torch.randn(2, 8, 9)),
        (ConvNeXt(), IMAGE),
    ],
    ids=["linear", "no bias", "conv2d", "conv1d", "permuted"],
)
def test_numbers_by_channel_go_into_the_weights(model: nn.Module, x: Tensor) -> None:
    program = compiled(model, x, shapes=BATCHES)
    assert "mul(" not in lines(program)
    assert_close(program, model, x)
    other = {k: v + 0.25 for k, v in model.state_dict().items()}
    program.artifact.load_state_dict(other)
    model.load_state_dict(other)
    assert_close(program, model, x)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Scaled(nn.Linear(6, 5), 4, 5), torch.randn(4, 6)),  # by row as well
        (Scaled(nn.Conv2d(8, 6, 3), 10, 1), IMAGE),  # by line
        (Scaled(nn.Conv2d(8, 10, 3), 10, 1), torch.randn(8, 12, 12)),  # an image by itself: by line again
        (Scaled(nn.Linear(6, 1), 5), torch.randn(4, 6)),  # the result is wider
        (nn.Sequential(nn.Linear(6, 5), nn.Softmax(-1), Scaled(nn.Identity(), 5)), torch.randn(4, 6)),
    ],
    ids=["matrix", "line", "unbatched", "wider", "softmax"],
)
def test_other_products_stay(model: nn.Module, x: Tensor) -> None:
    program = compiled(model, x)
    assert "mul" in lines(program)
    assert_close(program, model, x)


class TwiceScaled(nn.Module):
    """One product that is read twice, another that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.first, self.second = nn.Parameter(torch.rand(5)), nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * self.first
        return y + y * self.second


def test_a_product_that_is_read_twice_is_not_scaled_again() -> None:
    x = torch.randn(4, 6)
    model = TwiceScaled()
    assert_close(compiled(model, x), model, x)
    chain = nn.Sequential(Scaled(Scaled(nn.Linear(6, 5), 5), 5))
    program = compiled(chain, x)
    assert "torch_mul" not in lines(program)
    assert_close(program, chain, x)


@onednn
@pytest.mark.parametrize("images", [True, False])
def test_a_sum_behind_a_permutation(images: bool) -> None:
    model = ConvNeXt(images)
    program = compiled(model, IMAGE, shapes=BATCHES)
    assert ("linear_add(" in lines(program)) == images
    assert lines(program).count("_packed") == len(set(re.findall(r"\w+_packed\w*", lines(program))))
    assert_close(program, model, IMAGE)
    assert_close(program, model, torch.randn(5, 8, 12, 12))
    last = IMAGE.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(program(last), program(IMAGE))


# -- parallel linear layers --------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Grouped queries: widths that differ; views behind the layers, a layer that an activation reads, results."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q, self.gate = nn.Linear(64, 64, bias=bias), nn.Linear(64, 64, bias=bias)
        self.k, self.v = nn.Linear(64, 16, bias=bias), nn.Linear(64, 16, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        layers = self.q, self.k, self.v
        heads = [layer(x).view(batch, length, layer.out_features // 8, 8) for layer in layers]
        q, k, v = (t.transpose(1, 2).contiguous() for t in heads)
        k, v = (t.view(batch, 2, 1, length, 8).expand(-1, -1, 4, -1, -1).reshape(q.shape) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, 64)
        return y * F.silu(self.gate(x)), self.k(x), self.v(x).view(-1, 16) + 1


def siblings(model: nn.Module, x: Tensor, *others: str) -> ir.Exported:
    return compiled(model, x, passes=["siblings", *others], shapes=({0: "batch", 1: "time"},))


@pytest.mark.parametrize("other", [torch.randn(3, 5), torch.randn(5, dtype=torch.float64)], ids=["wider", "float64"])
def test_a_result_of_another_type_takes_no_operands_place(other: Tensor) -> None:
    x = torch.randn(5)
    model = lambda x, y: (x + 1) + y  # noqa: E731
    program = compiled(model, x, other, passes=["inplace"])
    assert ".add_(" not in lines(program)
    torch.testing.assert_close(program(x, other), model(x, other), rtol=0, atol=0)


@onednn
def test_what_a_convolution_reads_is_not_what_it_adds_to() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.conv = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            made = self.before(x)
            return made + self.conv(made)

    model = Residual()
    assert_close(compiled(model, IMAGE), model, IMAGE)


@pytest.mark.parametrize("others", [(), ("linear", "inplace")], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_parallel_linears_become_one(bias: bool, others: tuple[str, ...]) -> None:
    model, x = Attention(bias).eval(), torch.randn(4, 32, 64)
    program = siblings(model, x, *others)
    assert lines(program).count("split_with_sizes(") == 1
    assert lines(program).count("linear(") == 4  # the joint one, the gate, two whose results are handed out
    for batch, length in ((4, 32), (1, 1), (3, 50), (0, 5)):
        x = torch.randn(batch, length, 64)
        with torch.no_grad():
            expected = model(x)
        for result, wanted in zip(program(x), expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5, check_stride=True)


def test_joint_weights_follow_a_new_state() -> None:
    model, x = Attention(True).eval(), torch.randn(2, 8, 64)
    program, other = siblings(model, x, "linear"), Attention(True).eval()
    held = program.artifact.constants
    assert program.artifact.state_dict().keys() == model.state_dict().keys()
    assert not any("q_weight" in n and n not in held.weights and n not in lines(program) for n in held.globals)
    clone = program.artifact.clone()
    program.artifact.load_state_dict(other.state_dict())
    for run, module in ((program.artifact, other), (clone, model)):
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x), rtol=1e-5, atol=1e-5)


def test_layers_that_are_no_siblings() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
            self.register_buffer("state", torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            self.state.mul_(0.5)
            y: Tensor = self.a(x) * self.b(x) * F.linear(x, self.state)  # bias or none, a weight that is written
            return self.c(y)

    model, x = Model().eval(), torch.randn(4, 8)
    program = compiled(model, x, passes=["siblings"])
    assert "split_with_sizes" not in lines(program)


def test_parallel_linears_are_joined_where_autotune_finds_that_it_pays() -> None:
    assert "siblings" not in Eager().chosen and "siblings" in Eager(autotune=True).chosen
    assert Eager(optimize=False, autotune=True).chosen == ()


# -- updates -----------------------------------------------------------------------------------------------------------


def test_what_writes_where_an_input_lies_may_be_done_twice() -> None:
    x, rows, at = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([2, 0, 2, 3, -1])
    arguments = {"aten::index_copy": (0, at.abs(), rows), "aten::index_put": ((at,), rows)}
    assert arguments.keys() == IN_PLACE.keys()
    for op, args in arguments.items():
        expected = getattr(torch.ops.aten, op.removeprefix("aten::")).default(x, *args)
        written = x.clone()
        for _ in range(2):
            IN_PLACE[op](written, *args)
            assert torch.equal(written, expected)


# -- chosen by measurement ---------------------------------------------------------------------------------------------


def test_autotune_keeps_what_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(h: Any, block: Any) -> None:
        step = next(s for s in block.steps if s.fn in (Tensor.tanh, Tensor.tanh_))
        late = replace(step, fn=_dawdle, outputs=(h.local("late", step.output.type),))
        block.steps.insert(block.steps.index(step), late)

    monkeypatch.setitem(PASSES, "slow", slow)  # type: ignore[misc]
    model = Everything().eval()
    program = ir.export(model, (IMAGE,), target=Eager(autotune=True))
    assert "_dawdle" in lines(compiled(model, IMAGE)) and "_dawdle" not in lines(program)
    assert_close(program, model, IMAGE)


def _dawdle(x: Tensor) -> Tensor:
    time.sleep(0.003)
    return x


def test_autotune_leaves_state_alone() -> None:
    x = torch.randn(4, 6)
    model = Masked()
    before = torch.get_rng_state()
    program = ir.export(model, (x,), target=Eager(autotune=True))
    assert torch.equal(torch.get_rng_state(), before)
    for _ in range(2):
        assert_same(program(x), model(x))


def test_autotune_needs_inputs() -> None:
    exported = torch.export.export(nn.Linear(2, 2), (torch.randn(1, 2),))
    exported.example_inputs = None
    with pytest.raises(ir.ExportError, match="no example inputs"):
        ir.export(exported, target=Eager(autotune=True))


# -- element types, devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_element_types(dtype: torch.dtype) -> None:
    model, x = Everything().eval(), IMAGE.clamp(-1, 1)
    program = ir.export(model, (x,), target=Eager(dtype=dtype))
    result = program(x)
    assert result.dtype is dtype and all(
        t.dtype is dtype for t in program.artifact.weights.values() if t.is_floating_point()
    )
    with torch.no_grad():
        torch.testing.assert_close(result.float(), model(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.zeros(4),
        lambda: torch.rand(4),
        lambda: torch.arange(4.0),
        lambda: torch.full((4,), 2.5),
        lambda: torch.linspace(0, 1, 4),
        lambda: torch.eye(4),
        lambda: torch.arange(4) / 2,
        lambda: torch.arange(4).sqrt(),
        lambda: torch.zeros(4, dtype=torch.float32),
        lambda: torch.arange(4).float(),
        lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]),
    ],
)
@pytest.mark.parametrize("optimize", [False, True])
def test_what_is_made_of_no_float_has_the_programs_type(made: Any, optimize: bool) -> None:
    program = ir.export(lambda x: x + made(), (torch.randn(4, 4),), target=Eager(dtype="bfloat16", optimize=optimize))
    assert program(torch.randn(4, 4)).dtype is torch.bfloat16


def test_bits_under_another_element_type() -> None:
    whole = torch.tensor([1065353216], dtype=torch.int32)  # the bits of 1.0
    program = ir.export(lambda i: i.view(torch.float32) + 1, (whole,), target=Eager(dtype="bfloat16"))
    assert program(whole).tolist() == [2.0] and program(whole).dtype is torch.bfloat16
    with pytest.raises(ir.ExportError, match="it reads the bits of float32"):
        ir.export(lambda x: x.view(torch.int32), (torch.ones(2),), target=Eager(dtype="bfloat16"))


def test_capture_wants_a_gpu() -> None:
    program = compiled(nn.Linear(2, 2), torch.randn(1, 2)).artifact
    with pytest.raises(ir.ExportError, match="this one is on cpu"):
        program.capture(torch.randn(1, 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_lowest_float32_becomes_the_lowest_of_the_programs_type(dtype: str) -> None:
    """transformers masks with `torch.finfo(x.dtype).min`, which stands in the graph as a number of float32."""

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        lowest = torch.finfo(x.dtype).min
        return torch.where(x > 0, x, lowest), x.double().clamp_min(lowest)

    x = torch.tensor([1.0, -1.0])
    masked, clamped = ir.export(model, (x,), target=Eager(dtype=dtype))(x)
    assert masked.tolist() == [1.0, torch.finfo(getattr(torch, dtype)).min]
    assert torch.equal(clamped, x.double())


def test_a_kernel_that_fails_for_other_strides_gets_contiguous_tensors() -> None:
    """torch.kron makes a view of its operand, which a convolution leaves with the channels last."""
    conv, other = nn.Conv1d(6, 4, 2), torch.randn(3)
    model = nn.Sequential(conv, Call(lambda y: torch.kron(y.abs(), other)))
    given = torch.randn(2, 6, 5)
    with torch.no_grad():
        torch.testing.assert_close(ir.export(model, (given,), target="eager")(given), model(given))
