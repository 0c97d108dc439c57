"""Writes through views on every target: results, inputs and buffers are what ExportedProgram.module() makes of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ir
from tests.write_chains import module, source

X = torch.randn(4, 6)
ROWS = ({0: torch.export.Dim.DYNAMIC},)


def tensors(nested: Any) -> list[Tensor]:
    return [t for t in tree_leaves(nested) if isinstance(t, Tensor)]


def owners(given: list[Tensor], results: list[Tensor]) -> list[int]:
    """For each tensor the first that lies in the same memory."""
    memory = [t.untyped_storage()._cdata for t in (*given, *results)]
    return [memory.index(m) for m in memory]


def check(program: ir.Exported, reference: Any, x: Tensor, aliases: bool = True) -> None:
    """Several calls of the eager program and of torch's, with the state that they leave."""
    for _ in range(3):
        theirs, ours = x.clone(), x.clone()
        with torch.no_grad():
            expected = tensors(reference(theirs))
        actual = tensors(program(ours))
        for a, e in zip((*actual, ours), (*expected, theirs), strict=True):
            assert a.dtype == e.dtype
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert not aliases or owners([ours], actual) == owners([theirs], expected)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_chains(first: int) -> None:
    for seed in range(first, first + 10):
        text, shape, kind = source(seed)
        torch.manual_seed(seed)
        x = torch.randn(shape)
        captured = torch.export.export(module(text), (x.clone(),), strict=False)
        try:
            program = ir.export(captured, target="eager", optimize=False)
        except ir.CaptureError as error:
            assert "share memory" in str(error) or "in place" in str(error), text
            continue
        check(program, captured.module(), x, aliases=kind != "buffer" and "as_strided" not in text)
        if seed % 3 == 0:
            ir.export(captured, target="onnx").verify((x,))


CLASSES: dict[str, Callable[[Tensor], Any]] = {}


def row(fn: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    CLASSES[fn.__name__] = fn
    return fn


@row
def pad_is_a_copy(x):
    p = torch.nn.functional.pad(y := x + 1, (0, 0))
    p.add_(1)
    return y, p


@row
def composites_that_are_views(x):
    y, a, b = x + 1, x[:, 0] + 1, x[0] + 2
    g, h = torch.meshgrid(a, b, indexing="ij")
    e, d, c = torch.einsum("ij->ji", y), nn.Dropout().eval()(y), torch.cartesian_prod(b)
    a.add_(1), e.mul_(2), d[1:].sub_(3), c.add_(5)
    return g * 1, h * 1, y * 1, b * 1


@row
def views_under_no_grad(x):
    y = x + 1
    with torch.no_grad():
        v = y.view(-1)
    y[0].add_(1), v[2:4].mul_(3)
    return y, v * 1


@row
def lists_and_out(x):
    y, z, v, i = x + 1, x * 2, torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.long)
    torch._foreach_mul_([y[0], z[:, 1]], [x[0] + 1, x[:, 2]])
    torch.sort(x[:4], 1, out=(v, i)) if x.shape[0] == 4 else None
    torch.add(x, 1, out=y[:, :])
    return y, z, torch.mul(x, x, out=torch.empty(0))


@row
def renamed_in_place(x):
    y = x * 2
    v, r = y.view(-1), y[0]
    y.t_()
    y[1].add_(5), y.unsqueeze_(0), y[0, 0].zero_(), y.squeeze_(0), y.transpose_(0, 1), y.mul_(2)
    return y * 1, v * 1, r * 1


@row
def renamed_by_another_name(x):
    y = x * 2
    z = torch.nn.functional.dropout(y, 0.5, training=False)  # is y, though torch.export traces a tensor of its own
    y.unsqueeze_(0)
    whole, rows = z.int(), z.sum(1)
    z.transpose_(0, 1), z.unsqueeze_(-1)
    return whole.flatten(), rows, y * 1, z.amax(0), torch.cat([z, z], 1).relu()


@row
def element_types(x):
    y, n = x * 2, (x * 20).to(torch.int32)
    y[:, 1].gt_(0), y.add_(x.double() * 3), n.copy_(x * 3), n[0].eq_(0), y.copy_(torch.arange(6))
    return y, n


@row
def parts_of_complex(x):
    c, y = torch.complex(x, x + 1), x * 1
    c.real.add_(1), c.imag[:, 1].mul_(3), torch.view_as_real(c)[..., 0].sub_(1)
    torch.view_as_complex(y.view(-1, 3, 2)).mul_(2j)
    return torch.view_as_real(c) * 1, y


@row
def conjugates(x):
    c = torch.complex(x, x + 1)
    d = c.conj()
    d.add_(1 + 2j)
    return torch.view_as_real(c) * 1, torch.view_as_real(d.resolve_conj())


@row
def pieces(x):
    y = x * 2
    a, b, c = y.split_with_sizes([1, 2, 3], 1)
    b.add_(a), c[:, 1].zero_(), y.unbind(1)[5].mul_(3), y.diagonal().add_(10), y.unfold(1, 2, 3).mul_(3)
    y.unfold(1, 3, 1)[:, 1].fill_(5.0), y.as_strided((3, 2), (6, 1), 1).add_(1)
    return y, b * 1


@row
def layouts(x):
    y = torch.zeros(6, x.shape[0])
    y.copy_(x.t())
    v = y.view(-1)
    v.add_(1)
    y.t()[:, 2].copy_(x[:, 1])
    return y, v * 1


@row
def results_that_share(x):
    v = x[:, 1]
    v.add_(1)
    y = x * 2
    y[0].zero_()
    return v, x, x.t(), y, y[0], y.view(-1)


@row
def lists_of_one_memory(x):
    y = x * 2
    torch._foreach_add_([y, y, y[0]], 1)
    torch._foreach_mul_([y, x, y], [x, y, x])
    return y


@row
def memory_of_its_own(x):
    """torch's fake kernels return their argument for some of these, its real ones do not."""
    four = x.reshape(1, -1, 2, 3)
    a, b, c = nn.functional.channel_shuffle(four, 1), x.new_tensor([1, 2]), torch.tensor([3.0])
    a.mul_(2), b.expand_as(b).add_(1), c.fill_(4)
    return four * 1, a, b, c, torch.ones(4, 3).fill_diagonal_(2), torch.ops.aten.data(a).mul_(2)


@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_writes(name: str, target: str) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return CLASSES[name](x)

    shapes = None if name in ("lists_and_out", "conjugates") else ROWS  # torch.export fixes the size there
    program = ir.export(Model(), (X.clone(),), target=target, dynamic_shapes=shapes)
    reference = program.graph.context.program.module(check_guards=False)
    for n in (4, 7, 3) if shapes else (4,):
        x = torch.randn(n, 6)
        program.verify((x,))
        if target == "eager":
            check(program, reference, x)


class OneStorage(nn.Module):
    """Buffers that lie in one storage, in gaps, and under two names."""

    def __init__(self) -> None:
        super().__init__()
        whole, overlapping = torch.arange(24.0).view(4, 6), torch.arange(10.0)
        self.register_buffer("whole", whole)
        self.register_buffer("row", whole[1])
        self.register_buffer("again", whole)
        self.register_buffer("front", overlapping[:6])
        self.register_buffer("back", overlapping[4:])
        self.register_buffer("gaps", torch.arange(24.0).view(4, 6)[:, ::2])
        self.register_buffer("turned", torch.arange(24.0).view(6, 4).t())

    def forward(self, x: Tensor) -> Any:
        self.whole.add_(x), self.row.mul_(2), self.front.add_(x[0]), self.back.sub_(1)
        self.gaps.diagonal().mul_(2), self.turned[0].add_(x[1]), self.turned.as_strided((2,), (3,), 1).zero_()
        return self.row + 1, self.again * 1, self.front * 1, self.gaps * 1, self.turned * 1


@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
def test_buffers_in_one_storage(target: str) -> None:
    model = OneStorage()
    program = ir.export(copy.deepcopy(model), (X,), target=target, verify=True)
    assert set(program.graph.updates) == {"whole", "row", "again", "front", "back", "gaps", "turned"}
    if target == "eager":
        check(program, torch.export.export(model, (X,), strict=False).module(), X)


def test_what_torch_leaves_undefined_is_refused() -> None:
    with pytest.raises(ir.CaptureError, match="elements share memory"):
        ir.capture(lambda x: (x * 2).unfold(1, 3, 1).mul_(3), (X,))


def test_observing_assumes_nothing_of_sizes() -> None:
    captured = torch.export.export(module(source(3)[0]), (torch.randn(source(3)[1]),), strict=False)
    env = torch._guards.detect_fake_mode([n.meta.get("val") for n in captured.graph.nodes]).shape_env
    before = len(env.guards), dict(env.replacements)
    ir.capture(captured)
    assert (len(env.guards), dict(env.replacements)) == before


@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
def test_a_program_has_its_own_state(target: str) -> None:
    """The model writes to its buffers behind the export, and the program still starts where they were."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count

    model = Counter()
    program = ir.export(model, (torch.zeros(2),), target=target)
    for _ in range(3):
        model(torch.zeros(2))
    program.graph.context.program.module()(torch.zeros(2))
    assert program(torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "fn", [lambda x: (x * 2).squeeze_(), lambda x: x.clone()[-2:][:-1].mul_(2), lambda x: x.repeat(2, 1)[2:].abs_()]
)
def test_sizes_below_the_traced_ones_are_run_by_torch(fn: Callable[[Tensor], Tensor]) -> None:
    program = ir.export(fn, (X,), target="eager", dynamic_shapes=({0: torch.export.Dim.AUTO},))
    for n in (1, 0, 3):
        x = torch.randn(n, 6)
        torch.testing.assert_close(program(x.clone()), fn(x.clone()), rtol=0, atol=0)


@pytest.mark.parametrize("target", ["eager", "onnx", "nnef"])
def test_places_that_data_decides(target: str) -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        y[i].mul_(3), y[:, i].add_(x[:, 0])
        column, row = y.t()[i], y[i]
        column[0].div_(column[-1]), row[1:].neg_(), row[::2].add_(1), y.view(-1)[i].mul_(2)
        return y

    program = ir.export(fn, (X, torch.tensor(1)), target=target)
    for i in (0, 2, -1, -3):
        program.verify((X, torch.tensor(i)))


def masked_in_place(x, mask):
    scores = x * 2
    scores.data.masked_fill_(mask, -1.0)
    return torch.softmax(scores, -1)


def test_what_is_written_through_data_is_seen():
    args = torch.randn(2, 3), torch.tensor([[True, False, False]]).expand(2, 3)
    program = ir.export(masked_in_place, args, target="eager", dynamic_shapes=({0: "n"}, {0: "n"}), verify=True)
    assert not any(w.name.startswith("c_") for w in program.graph.weights.values())


def test_a_write_through_a_wider_type_keeps_the_strides_that_it_needs():
    """torch asks that strides fit the wider type, that of an axis of one element too."""

    def fn(x):
        wide = x.view(torch.int32)
        first, _ = wide.tensor_split((1,), -1)
        first[first > 0] = 7
        return first.mT, wide

    x = torch.tensor([[1, 2, -1, 5]], dtype=torch.int16)
    program = ir.export(fn, (x,), target="eager")
    assert all(map(torch.equal, program(x.clone()), fn(x.clone())))


def test_a_write_to_no_element_of_a_number_leaves_it():
    """torch traces the diagonal of one row as one element, also where the row is empty."""

    def written(x):
        number = x.new_zeros(()).clone()
        _, repeated = torch.broadcast_tensors(x[None], number)
        repeated.diagonal().fill_(3)
        return number, repeated + 1

    program = ir.export(written, (torch.ones(4),), target="eager", dynamic_shapes=({0: "n"},))
    for n in (4, 2, 0):
        program.verify((torch.ones(n),))
    assert program(torch.ones(0))[0] == 0
    assert program(torch.ones(2))[0] == 3


def as_integers(x):
    y = x * 2
    bits = y.view(torch.int32)
    y.floor_()
    part = bits.as_strided((3,), (1,), 1)
    part.add_(1)
    return part, bits, y


def as_halves_of_integers(x):
    y = (x * 2).T.contiguous().T
    halves = y.T.view(torch.int16)
    y.floor_()
    return halves.as_strided((2, 5), (5, 1), 1), halves


def as_parts_of_a_conjugate(x):
    y = torch.complex(x, x * 2)
    c = y.conj()
    imaginary = c.imag
    c.mul_(2j)
    return imaginary.as_strided((3,), (4,), 1), torch.view_as_real(y).as_strided((4,), (1,), 0), c.resolve_conj()


@pytest.mark.parametrize("model", [as_integers, as_halves_of_integers, as_parts_of_a_conjugate])
def test_written_memory_is_read_by_places_as_another_type(model):
    program = ir.export(model, torch.randn(3, 4), target="eager")
    x = torch.randn(3, 4)
    for made, wanted in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(made, wanted, rtol=0, atol=0)


class SplitByItself(torch.nn.Module):
    """The places of the split lie in what is written later; they are read once."""

    def forward(self, x):
        v = x + 0
        _, rest = torch.tensor_split(v, v[:1])
        v[0] = 3
        return rest + 1


@pytest.mark.parametrize("way", ["module", "file"])
@pytest.mark.parametrize("target", ["eager", "onnx"])
def test_places_of_a_split_are_read_once(target, way, tmp_path):
    x = torch.tensor([1, 2, 3, 4, 5])
    given = SplitByItself()
    if way == "file":
        torch.export.save(torch.export.export(given, (x,)), tmp_path / "split.pt2")
    program = ir.export(tmp_path / "split.pt2" if way == "file" else given, (x,), target=target)
    for first in (1, 4, 0):
        x[0] = first
        assert torch.equal(program(x), given(x))


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
def test_numbers_out_of_tensors_are_written(target):
    class Model(torch.nn.Module):
        def forward(self, x, n):
            y = x.clone()
            y.fill_(n.item())
            y.mul_(n.item())
            y[0].add_(n.item())
            return y

    given = torch.ones(3), torch.tensor(2.5)
    program = ir.export(Model(), given, target=target)
    for n in (2.5, -4.0):
        torch.testing.assert_close(program(given[0], torch.tensor(n)), Model()(given[0], torch.tensor(n)))
