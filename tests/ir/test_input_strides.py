"""Which inputs a program depends on by their strides, and by which op."""

import pytest
import torch
from torch.export import Dim

import ir


class Model(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *args):
        return self.call(*args)


def strides(call, *args, **more):
    return ir.capture(Model(call), args, **more).strides


def written_as_a_row(x):
    x.reshape(-1).add_(1)
    return x * 2


def written_in_a_sum(x, y):
    total = x + y
    total.flatten().mul_(2)
    return total


def written_behind_a_copy(x):
    row = x.clone().reshape(-1)
    return row.add_(1)


def read_as_a_row(x):
    total = x + 1
    row = total.reshape(-1)
    total.mul_(2)
    return row * 1


def read_from_a_copy(x):
    total = x + 1
    row = total.mT.flatten()
    total.mul_(2)
    return row * 1


def written_in_a_block(x):
    with torch.no_grad():
        x.reshape(-1).zero_()
    return x


def activated(x):
    return torch.relu_((x * 2).permute(0, 2, 1).flatten(1))


def written_where_a_view_reaches_the_input(x):
    x.mT.flatten().add_(1)
    return x * 1


def written_behind_a_kernel(x):
    made = torch.nn.functional.avg_pool1d(x, 1)
    made.reshape(-1).add_(1)
    return made * 1


def read_by_place(x):
    return x.as_strided((2, 2), (1, 2))


def read_in_a_copy(x):
    return x.clone(memory_format=torch.contiguous_format).as_strided((2, 2), (1, 2))


X = torch.randn(3, 4)


@pytest.mark.parametrize(
    "call, args, op",
    [
        (written_as_a_row, (X,), "aten::reshape"),
        (written_in_a_sum, (X, X.clone()), "aten::flatten"),
        (written_in_a_block, (X,), "aten::reshape"),
        (read_as_a_row, (X,), "aten::reshape"),
        (read_from_a_copy, (X,), "aten::flatten"),
        (written_where_a_view_reaches_the_input, (X,), "aten::flatten"),
        (written_behind_a_kernel, (X,), "aten::reshape"),
        (read_by_place, (X,), "aten::as_strided"),
    ],
    ids=lambda a: getattr(a, "__name__", ""),
)
@pytest.mark.parametrize("file", [False, True], ids=["model", "file"])
def test_what_depends_on_strides_is_found(call, args, op, file, tmp_path):
    program = torch.export.export(Model(call), tuple(a.clone() for a in args))
    torch.export.save(program, tmp_path / "m.pt2")
    found = ir.capture(tmp_path / "m.pt2" if file else program).strides
    assert found["args_0"].op == op
    assert found["args_0"].order == (0, 1)
    assert call.__code__.co_filename.rpartition("/")[2] in found["args_0"].origin


@pytest.mark.parametrize(
    "call, x",
    [
        (written_behind_a_copy, X),
        (activated, torch.randn(2, 3, 4)),
        (read_in_a_copy, X),
        (lambda x: x.reshape(-1) + 1, X),
        (lambda x: x.view(-1).add_(1), X),
        (lambda x: x.mul_(2).sum(), X),
        (lambda x: (x.to(torch.float32).add_(1), x * 1)[1], X),
        (lambda x: (x.unsqueeze(0).expand_as(x[None]).add_(1), x * 1)[1], X),
    ],
    ids=["copy", "activation", "contiguous", "no write", "view", "no view", "to", "expand_as"],
)
def test_what_does_not_is_left_alone(call, x):
    assert not strides(call, x.clone())


def test_only_the_input_that_matters_is_named():
    def call(x, y):
        y.reshape(-1).add_(x.reshape(-1))
        return y

    assert strides(call, X.clone(), X.clone()).keys() == {"args_1"}


def test_a_dynamic_size():
    found = strides(written_as_a_row, X.clone(), dynamic_shapes=(({0: Dim.DYNAMIC},),))
    assert found["args_0"].held_by(torch.empty(7, 4))
    assert not found["args_0"].held_by(torch.empty(4, 7).mT)


def test_an_example_of_other_strides():
    found = strides(written_in_a_sum, X.mT.contiguous().mT, X.mT.contiguous().mT)["args_0"]
    assert found.order == (1, 0)
    assert found.held_by(torch.empty(4, 3).mT) and not found.held_by(torch.empty(3, 4))


def test_an_example_with_gaps():
    found = strides(lambda x: x.as_strided((2,), (1,)), torch.randn(3, 8)[:, ::2])["args_0"]
    assert found.order is None
    assert found.held_by(torch.empty(3, 8)[:, ::2]) and not found.held_by(torch.empty(3, 4))


def test_a_place_counted_from_the_beginning_of_the_storage():
    found = strides(lambda x: x.as_strided((2,), (1,), 3), X.clone())["args_0"]
    assert found.held_by(torch.empty(3, 4)) and not found.held_by(torch.empty(6, 4)[3:])


def of_transposed(function):
    def call(x):
        made = function(x.mT)
        made.reshape(-1).add_(1)
        return made * 1

    return Model(call)


def written_as_another(x):
    made = torch.nn.functional.logsigmoid(x.mT)
    made.reshape_as(x).add_(1)
    return made * 1


@pytest.mark.parametrize(
    "model",
    [
        of_transposed(torch.nn.functional.logsigmoid),
        of_transposed(lambda x: torch.nn.functional.one_hot((x > 0).long(), 2)),
        Model(written_as_another),
    ],
    ids=["logsigmoid", "one_hot", "reshape_as"],
)
@pytest.mark.parametrize("file", [False, True], ids=["model", "file"])
def test_a_kernel_of_other_strides_than_its_fake_is_refused(model, file, tmp_path):
    program = torch.export.export(model.eval(), (torch.randn(2, 3, 4),))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(ir.CaptureError, match=r"whether aten::reshape(_as)? gives a view or a copy .* matters"):
        ir.capture(tmp_path / "m.pt2" if file else program)


FUNCTIONAL = torch.nn.functional


@pytest.mark.parametrize(
    ("function", "net"),
    [
        (lambda net, x: net(x)[0], torch.nn.LSTM(4, 3, batch_first=True)),
        (lambda net, x: net(x)[0], torch.nn.GRU(4, 3, bidirectional=True)),
        (lambda net, x: net(x, x, x)[0], torch.nn.MultiheadAttention(4, 2)),
        (lambda _, x: FUNCTIONAL.logsigmoid(x), None),
        (lambda _, x: x.int() & 3, None),
        (lambda _, x: torch.rsub(x, x), None),
        (lambda _, x: FUNCTIONAL.nll_loss(x, torch.zeros(3, 4, dtype=torch.int64), reduction="none"), None),
        (lambda _, x: FUNCTIONAL.cross_entropy(x, torch.zeros(3, 4, dtype=torch.int64), reduction="none"), None),
        (lambda _, x: FUNCTIONAL.grid_sample(x[None], torch.zeros(1, 2, 2, 2)), None),
        (lambda _, x: x.put(torch.tensor([1]), torch.tensor([2.0])), None),
        (lambda _, x: x.index_fill(1, torch.tensor([0]), 2.0), None),
        (lambda _, x: x.new_zeros(2, 3) + x[0, 0, 0], None),
        (lambda _, x: torch.add(x, x).fill_(x[0, 0, 0]), None),
        (lambda _, x: torch.add(x, x).zero_(), None),
        (lambda _, x: torch.add(x[0], x[0]).fill_diagonal_(2.0), None),
    ],
)
def test_a_file_is_told_like_the_program(function, net, tmp_path):
    class Written(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            made = function(self.net, x)
            row = made.transpose(-1, 0).reshape(-1)
            made.add_(1)
            return row, made

    program = torch.export.export(Written().eval(), (torch.randn(3, 4, 4),))
    torch.export.save(program, tmp_path / "m.pt2")
    assert [n.op for n in ir.capture(tmp_path / "m.pt2").nodes] == [n.op for n in ir.capture(program).nodes]


def test_the_example_is_not_written_to():
    x, kept = X.clone(), torch.zeros(12)

    class Kept(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", kept)

        def forward(self, x):
            made = x * 2
            made.reshape(-1).add_(1)
            self.kept.add_(made.reshape(-1))
            return made * 1

    program = torch.export.export(Kept(), (x,))
    before = torch.get_rng_state()
    assert ir.capture(program).strides.keys() == {"x"}
    assert torch.equal(x, X) and not program.state_dict["kept"].any()
    assert torch.equal(before, torch.get_rng_state())


def test_what_kernels_compute_has_no_gaps():
    found = strides(written_in_a_sum, X.clone(), X.clone())["args_0"]
    assert found.held_by(torch.empty(3, 8)[:, ::2]) and found.held_by(torch.empty(1, 4))
    assert not found.held_by(torch.empty(4, 3).mT) and not found.held_by(torch.empty(1, 4).expand(3, 4))
    assert not strides(written_as_a_row, X.clone())["args_0"].held_by(torch.empty(3, 8)[:, ::2])
