"""Sizes that tract computes otherwise than torch, or that it cannot prove to be what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ir
import nnef_backend

pytest.importorskip("tract")
pytestmark = pytest.mark.filterwarnings("ignore")

SUMS: dict[str, Callable[[Any], Any]] = {
    "half": lambda n: n - n // 2,
    "above": lambda n: n - (n - 1) // 2,
    "quarters": lambda n: n - n // 2 - n // 4,
    "twice": lambda n: n + 2 * (n // 2),
    "left": lambda n: n - 2 * (n // 2) + 1,
    "nested": lambda n: (n - n // 2) // 2,
    "third": lambda n: 3 * n + 3 - n // 3,
    "most": lambda n: torch.sym_max(n - n // 2, 1),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_quotient_beside_other_terms_is_added_as_torch_adds_it(name):
    program = ir.export(lambda x: x.new_ones(SUMS[name](x.shape[0])) + x.sum(), (torch.ones(9),), target="nnef",
                        dynamic_shapes=({0: "n"},))  # fmt: skip
    for n in (9, 8, 7, 11, 12, 5):
        assert program(torch.ones(n)).shape[0] == int(SUMS[name](n))


QUOTIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "power": lambda x: x.abs() ** (x.shape[0] / (2 * x.shape[0])),
    "root": lambda x: x * (x.shape[0] / (4 * x.shape[0])) ** 0.5,
    "product": lambda x: torch.arange(x.shape[0]) * (x.shape[0] / (x.shape[0] * 2)),
    "steps": lambda x: torch.linspace(x.shape[0] / (4 * x.shape[0]), 1, x.shape[0]),
    "remainder": lambda x: torch.remainder(x, x.shape[0] / (4 * x.shape[0])),
    "tensors": lambda x: torch.full((), x.shape[0]) / torch.full((), 2 * x.shape[0]) * x,
    "bicubic": lambda x: F.interpolate(x[None, None], size=(2 * x.shape[0], 4), mode="bicubic"),
    "nearest": lambda x: F.interpolate(x[None, None], size=(3 * x.shape[0], 5), mode="nearest"),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_quotient_of_sizes_that_cancels_is_no_whole_number(name):
    program = ir.export(QUOTIENTS[name], (torch.randn(4, 4),), target="nnef", dynamic_shapes=({0: "b"},))
    for rows in (4, 1, 3, 6):
        torch.testing.assert_close(program(x := torch.randn(rows, 4)), QUOTIENTS[name](x))


PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half": lambda x: torch.cat([x, x, x[:1]])[:, : x.shape[1] // 2],
    "less": lambda x: torch.cat([x, x[1:]])[:, : x.shape[1] // 2],
    "both": lambda x: torch.cat([x, x[:1]])[1::2, : x.shape[1] // 2 + 1],
    "windows": lambda x: torch.nn.functional.max_pool2d(x, 3, 2).permute(1, 2, 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_a_quotient_and_a_sum_is_the_one_that_tract_makes_of_the_shape(name):
    rows, columns = torch.tensor([[0], [-1]]), torch.tensor([0, 0, 1])

    def model(x: torch.Tensor) -> torch.Tensor:
        return PRODUCTS[name](x)[rows, columns]

    program = ir.export(model, (torch.randn(4, 7, 6),), target="nnef", dynamic_shapes=({0: "b", 1: "t", 2: "w"},))
    for sizes in ((4, 7, 6), (3, 8, 5), (6, 12, 7)):
        x = torch.randn(sizes)
        assert torch.equal(program(x), model(x))


class Channels(torch.nn.Module):
    """Channels that are as many as the diagonal of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 2, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.diagonal(offset=-1, dim1=1, dim2=0)
        return self.conv(y + y.mT)


def test_a_size_that_meets_a_number_is_that_number_to_tract():
    model = Channels().eval()
    program = ir.export(model, (torch.randn(3, 3, 4, 2),), target="nnef", dynamic_shapes=({0: "n"},))
    for n in (3, 2, 5, 1):
        x = torch.randn(n, 3, 4, 2)
        torch.testing.assert_close(program(x), model(x))


def rewritten(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.reshape(2, -1).reshape(-1)[1:] = -0.75
    return x


VIEWS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rest": (lambda x: torch.meshgrid(x[x.shape[0] // 2 :, 0], x[0], indexing="xy"), (4, 7, 6)),
    "halves": (lambda x: torch.cat([x[: x.shape[0] // 2] * 2, x[x.shape[0] // 2 :]]) + x, (4, 7, 6)),
    "steps": (lambda x: x[1::2].reshape(2, -1) - 1, (12, 8)),
    "steps added": (lambda x: x[1::2] + x.new_ones(x.shape[0] // 2, 1), (4, 7, 6)),
    "nothing": (lambda x: x[None][:0, 1::2] > x[:1], (4, 7, 6)),
    "write": (rewritten, (4, 6, 8)),
    "one": (lambda x: x[1::3].reshape(4) * 2, (4, 3)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_sizes_that_only_torch_can_prove(name):
    fn, sizes = VIEWS[name]
    program = ir.export(fn, (torch.randn(sizes[0], 4),), target="nnef", dynamic_shapes=({0: "n"},))
    for n in sizes:
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x), fn(x))


def test_a_condition_of_sizes_loads_at_once_whatever_stands_before_it():
    """tract's search for the regions of such a condition doubles its time with each value that is read twice."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(12):
            y = y * (y - 1.5)
        return y.norm() + torch.dist(y, x)

    x = torch.rand(3, 4)
    program = ir.export(model, (x,), target=nnef_backend.Tract(load_timeout=30), dynamic_shapes=({0: "B"},))
    torch.testing.assert_close(program(x), model(x))
    torch.testing.assert_close(program(x[:1, :1].expand(5, 4)), model(x[:1, :1].expand(5, 4)))


def test_quotients_of_quotients_of_sizes_load_at_once():
    def model(x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0]
        for _ in range(6):
            size = ((size * 3 + 12 // (size + 1)) // 2) % (size + 7)
        return x + size

    x = torch.rand(6, 4)
    program = ir.export(model, (x,), target=nnef_backend.Tract(load_timeout=30), dynamic_shapes=({0: "B"},))
    for given in (x, torch.rand(5, 4), torch.rand(1, 4)):
        torch.testing.assert_close(program(given), model(given))


def test_a_slice_of_a_quotient_that_torch_found_to_be_a_number():
    """tract factors one bound of a slice of size 1 and not the other."""

    def model(x: torch.Tensor) -> torch.Tensor:
        rows = torch.chunk(x.flatten(), 3)[1].repeat_interleave(2, dim=0)
        return rows.sort().values[:-1] if rows.shape[0] == 16 else rows

    x = torch.rand(3, 8)
    program = ir.export(model, (x,), target="nnef", dynamic_shapes=({0: "B"},))
    torch.testing.assert_close(program(x), model(x))


def test_means_over_sizes_load_at_once_whatever_stands_before_them():
    """Of two means, and of a product with a size, tract notes masks that differ, and adds them up along every path."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(8):
            y = y * (y - 1.5)
        z = y / (y.mean() + 2)
        for _ in range(8):
            z = z * (z - 1.5)
        return z.mean(0) + (z * x.shape[0]).sum(1).max()

    x = torch.rand(3, 4)
    program = ir.export(model, (x,), target=nnef_backend.Tract(load_timeout=30), dynamic_shapes=({0: "B"},))
    for given in (x, torch.rand(5, 4), torch.rand(1, 4)):
        torch.testing.assert_close(program(given), model(given))


@pytest.mark.parametrize("first", [torch.cummax, torch.cummin, lambda x, dim: (torch.logcumsumexp(x, dim),)])
def test_loops_along_one_axis_and_another_load(first: Any):
    """tract moves an axis that is squeezed in a loop out of it, and back for the other loop, without end."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cummin(first(x, 1)[0], 0).values.cumprod(1)

    x = torch.rand(3, 2)
    program = ir.export(model, (x,), target=nnef_backend.Tract(load_timeout=30), dynamic_shapes=({0: "B"},))
    for given in (x, torch.rand(5, 2)):
        torch.testing.assert_close(program(given), model(given))


def test_all_or_nothing_of_an_axis_of_one():
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(0)[x.shape[0] // 2 :]

    program = ir.export(model, (torch.rand(3, 5),), target="nnef", dynamic_shapes=({0: "B"},))
    for size in (1, 2, 3):
        x = torch.rand(size, 5)
        assert torch.equal(program(x), model(x))


class Pyramid(torch.nn.Module):
    """Down by strides of 2 and up again, each map beside the one of its size: U-Net's and YOLO's skeleton."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.down = torch.nn.ModuleList(torch.nn.Conv1d(2, 2, 3, 2, 1) for _ in range(steps))

    def forward(self, x):
        maps = [x]
        for layer in self.down:
            maps.append(layer(maps[-1]))
        x = maps.pop()
        while maps:
            x = torch.cat((torch.nn.functional.interpolate(x, scale_factor=2.0), maps.pop()), 1).unfold(1, 2, 2).sum(-1)
        return x


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_maps_of_one_size_meet_though_it_has_two_forms(steps):
    program = ir.export(Pyramid(steps), (torch.randn(2, 2, 16),), target="nnef", dynamic_shapes=({0: "b", 2: "n"},))
    for size in (16, 24, 32):
        program.verify(torch.randn(3, 2, size))
    with pytest.raises(ir.ExportError):
        program(torch.randn(1, 2, 18 if steps > 1 else 17))


def test_a_size_that_a_guard_fixes_is_fixed_to_tract():
    def model(x):
        _, last = torch.tensor_split(x, 2, 1)  # of n // 2 channels, which torch guards to be 1 as it broadcasts them
        return torch.nn.functional.adaptive_avg_pool2d((last > 0.5) + 4.0, (2, None))

    x = torch.rand(5, 3, 6, 6)
    program = ir.export(model, (x,), target="nnef", dynamic_shapes=({1: torch.export.Dim.AUTO},))
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(ir.ExportError):  # torch's own program refuses it, too
        program(torch.rand(5, 5, 6, 6))


def test_a_stack_of_sizes_of_which_a_guard_fixes_one():
    def model(x):
        half = x[: x.shape[0] // 2]
        return torch.stack([half, half.roll(-1, -1)])  # torch guards the size to be 1 as it rolls

    x = torch.randn(3)
    program = ir.export(model, (x,), target="nnef", dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(x), model(x))


def test_parts_of_a_concatenation_have_sizes_that_torch_writes_in_two_ways():
    def model(x, b):
        return torch.block_diag(b, x.diagonal(offset=2, dim1=1, dim2=-3))

    x, b = torch.randn(3, 1, 4), torch.randn(2, 3)
    program = ir.export(model, (x, b), target="nnef", dynamic_shapes=({0: "n"}, None))
    for n in (2, 3, 7):
        x = torch.randn(n, 1, 4)
        torch.testing.assert_close(program(x, b), model(x, b))


WINDOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conv": lambda x: torch.nn.functional.conv2d(x, torch.ones(2, 3, 3, 3), None, 4, 1),
    "max": lambda x: torch.nn.functional.max_pool2d(x, 3, 4, 1),
    "places": lambda x: torch.nn.functional.max_pool2d(x, 3, 4, 1, return_indices=True)[1],
    "mean": lambda x: torch.nn.functional.avg_pool2d(x, 5, 4, 2),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_of_multiples_are_counted_as_torch_counts_them(name):
    """`(4*h + 3)/4` is h: two such sizes are the product that a reshape joins."""
    sizes = {2: 4 * torch.export.Dim("h", min=1), 3: 4 * torch.export.Dim("w", min=1)}
    program = ir.export(lambda x: WINDOWS[name](x).flatten(2), (torch.randn(1, 3, 12, 8),), target="nnef",
                        dynamic_shapes=(sizes,), verify=True)  # fmt: skip
    assert program(torch.randn(1, 3, 20, 24)).shape[2] == 30


def test_windows_of_a_padded_map_that_is_then_seen_by_its_own_sizes():
    """torch finds height and width to be multiples of 8, each in three forms: Swin2SR."""

    def model(x):
        batch, channels, height, width = x.shape
        y = torch.nn.functional.pad(x, (0, (8 - width % 8) % 8, 0, (8 - height % 8) % 8), "reflect")
        lines, columns = y.shape[2:]
        y = y.flatten(2).transpose(1, 2).view(batch, lines, columns, channels)
        windows = y.view(batch, lines // 8, 8, columns // 8, 8, channels).transpose(2, 3).softmax(4)
        y = windows.transpose(2, 3).reshape(batch, lines * columns, channels)
        return y.transpose(1, 2).view(batch, channels, height, width) * x

    shapes = ({0: "batch", 2: "height", 3: "width"},)
    program = ir.export(model, (torch.randn(2, 3, 16, 24),), target="nnef", dynamic_shapes=shapes)
    for sizes in ((2, 3, 16, 24), (1, 3, 32, 16), (3, 3, 40, 48)):
        x = torch.randn(sizes)
        torch.testing.assert_close(program(x), model(x))


class Features(torch.nn.Module):
    """Each map beside the next one, upsampled, and all of them at the size of the first."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.halve = torch.nn.ModuleList(torch.nn.Conv2d(3, 3, 3, 2, 1) for _ in range(levels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self.halve
        x = first(x)
        maps = [x := halve(x) for halve in others]
        for i in range(len(maps) - 2, -1, -1):
            maps[i] = maps[i] + torch.nn.functional.interpolate(maps[i + 1], scale_factor=2)
        up = [torch.nn.functional.interpolate(m, scale_factor=2**i) for i, m in enumerate(maps)]
        return torch.cat(up[::-1], 1)


@pytest.mark.parametrize("levels", [4, 5])
def test_sizes_that_are_one_by_several_steps(levels):
    """h//4 is 2*(h//8), and that 4*(h//16), of which no condition of torch's says that it is h//4."""
    model = Features(levels).eval()
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    program = ir.export(model, (torch.randn(2, 3, 64, 96),), target="nnef", dynamic_shapes=shapes)
    for size in ((2, 3, 64, 96), (1, 3, 128, 32)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)


class Cropped(torch.nn.Module):
    """Maps halved and doubled again, and cropped to what they were: at odd sizes they are one longer."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.halve = torch.nn.ModuleList(torch.nn.Conv2d(3, 3, 3, 2, 1) for _ in range(levels))
        self.grow = torch.nn.ModuleList(torch.nn.ConvTranspose2d(3, 3, 2, 2) for _ in range(levels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [x]
        for halve in self.halve:
            maps.append(halve(maps[-1]))
        x = maps.pop()
        for grow in self.grow:
            beside = maps.pop()
            x = grow(x)[..., : beside.shape[2], : beside.shape[3]]
            x = x + beside if maps else x
        return x


@pytest.mark.parametrize("levels", [1, 2])
def test_a_crop_is_a_crop_where_torch_only_asked_whether_it_is_the_whole(levels):
    model = Cropped(levels).eval()
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    program = ir.export(model, (torch.randn(1, 3, 16, 16),), target="nnef", dynamic_shapes=shapes)
    for size in ((2, 3, 16, 24), (2, 3, 7, 8), (1, 3, 9, 13), (1, 3, 18, 10)):
        x = torch.randn(size)
        torch.testing.assert_close(program(x), model(x))


def test_a_trace_that_fails_is_told_without_torchs_insides():
    def mask(lengths):
        n = lengths.max().item()
        torch._check(n >= 1)
        torch._check(n <= 10)
        return torch.arange(n)[None] < lengths[:, None]

    with pytest.raises(ir.RefusedError, match="does not help: torch cannot trace it for u0; sizes that are fixed may"):
        ir.export(mask, torch.tensor([3, 5]), target="nnef")


def test_an_axis_that_is_shorter_than_the_trace_says_stops_the_run():
    """`min(2, n) - 1` is 1 to torch, which takes n to be 2 or more; at n = 1 the quotient has no column."""

    def divided(x, y):
        rest = torch.isclose(x, y).double().diagonal()
        rest = rest[: rest.shape[0] - 1]
        return x / (rest + rest * -0.75)

    program = ir.export(divided, (torch.rand(2, 3), torch.rand(3)), target="nnef", dynamic_shapes=({1: "n"}, {0: "n"}))
    x, y = torch.rand(2, 4), torch.rand(4)
    torch.testing.assert_close(program(x, y), divided(x, y))
    with pytest.raises(ir.RefusedError, match=r"the size \(min\(2, n\)\) - 1 is 1"):
        program(x[:, :1], y[:1])


def test_an_axis_is_cut_to_a_quotient_of_a_sum_of_two_sizes():
    """tract rewrites such a quotient in one of the two bounds of a slice."""

    def blocks(x, y):
        return torch.block_diag(x, y).reshape(-1, 2)

    args = torch.rand(3, 1), torch.rand(3, 2)
    program = ir.export(blocks, args, target="nnef", dynamic_shapes=({0: "n"}, {0: "m"}))
    for n, m in ((3, 3), (4, 2), (1, 5)):
        x, y = torch.rand(n, 1), torch.rand(m, 2)
        assert torch.equal(program(x, y), blocks(x, y))


def test_a_size_that_torch_knows_to_be_no_less_than_0_is_the_same_with_and_without_its_maximum():
    def written(x):
        diagonal = x[..., None, ::2].diagonal(offset=-2, dim1=2, dim2=-2)
        diagonal[::2] = 0
        return x * 1

    program = ir.export(written, (torch.ones(3, 4),), target="nnef", dynamic_shapes=({1: "n"},))
    for n in (4, 3):
        assert torch.equal(program(torch.ones(3, n)), written(torch.ones(3, n)))


def test_a_loop_over_an_axis_that_torch_found_to_be_one():
    """Its states have the size 1, and what they are made of has n//2."""

    def rows(x):
        polynomial = torch.special.hermite_polynomial_he(x[1::2], x[1::2])
        return F.layer_norm(polynomial, (3,)), polynomial @ polynomial.mT

    with pytest.raises(ir.ExportError, match="tract does not check sizes in the body of a loop"):
        ir.export(rows, (torch.ones(3, 3),), target="nnef", dynamic_shapes=({0: "n"},))
