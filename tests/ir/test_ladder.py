"""The ways of capturing a live model: which is taken, what is said of it, and that the model stays as it was."""

from __future__ import annotations

import logging
import re
import warnings

import pytest
import torch
from torch.export import Dim

import ir
from ir.importer import ladder
from tests.ir.interpret import run

PLAIN, FOLLOWED, DEFERRED, NOT_EXPORTING, DERIVED, STRICT = ladder.RUNGS


def rung(model, *args, shapes=None):
    return ir.capture(model, args, dynamic_shapes=shapes).context.rung


def conditions(graph):
    return [str(n.args["self"]) for n in graph.nodes if n.op == "aten::_assert_scalar"]


def by_columns(x):
    return torch.softmax(x.view(x.size(1), -1), -1)


def cut(x, n):
    return x[: int(n.item())] * 2


def test_the_first_rung_that_takes_the_model():
    assert rung(lambda x: x + 1, torch.ones(4), shapes=({0: "n"},)) == ladder.Rung(PLAIN)
    assert rung(by_columns, torch.ones(4, 6), shapes=({0: "n"},)).name == PLAIN
    found = rung(by_columns, torch.ones(4, 6), shapes=({0: Dim("n")},))
    assert found.name == DEFERRED and "Constraints violated (n)" in str(found)
    found = rung(cut, torch.ones(4, 6), torch.tensor(3), shapes=({0: "n"}, {}))
    assert found.name == STRICT and len(found.refused) == 3 and "specialized integer" in str(found)
    assert rung(lambda x: torch.ones(int(x.shape[0] * 0.5)), torch.ones(8), shapes=({0: "n"},)).name == STRICT


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_size_that_has_to_be_one_stays_so():
    graph = ir.capture(lambda x: x.tensor_split(2)[1].unbind()[0] * 2, (torch.ones(3, 5),), dynamic_shapes=({0: "n"},))
    assert graph.context.rung.name == PLAIN
    assert conditions(graph) == ["(n//2) == 1"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_that_a_size_is_not_a_number_matters_where_the_model_asks():
    def plain(x):
        v = x[:, :1].tensor_split(2)
        return x[:, 2:] * 2, v

    def asking(x):
        if x.shape[0] // 2 == 0:
            return x
        return by_columns(x[: x.shape[0] // 2 * 2]), x[:, :1].tensor_split(2)

    graph = ir.capture(lambda x: plain(x)[0], (torch.ones(3, 5),), dynamic_shapes=({0: "n"},))
    assert graph.context.rung.name == DEFERRED and conditions(graph) == []
    assert run(graph, torch.ones(1, 5))[0].shape == (1, 3)
    graph = ir.capture(lambda x: asking(x)[0], (torch.ones(3, 5),), dynamic_shapes=({0: "n"},))
    assert "(n//2) != 0" in conditions(graph)


@pytest.mark.parametrize("asked", ("is_exporting", "is_compiling"))
def test_a_path_for_export_alone_that_fails_gives_way_to_the_one_that_is_run(asked):
    def masked(x):
        return x + (torch.ones(7) if getattr(torch.compiler, asked)() else 1)

    x = torch.arange(4.0)
    graph = ir.capture(masked, (x,))
    found = graph.context.rung
    assert found.name == NOT_EXPORTING and "7" in found.refused[0]
    assert torch.equal(run(graph, x)[0], x + 1)
    kept = ir.capture(lambda x: x + (2 if getattr(torch.compiler, asked)() else 1), (x,))
    assert torch.equal(run(kept, x)[0], x + 2)  # of two that work torch.export's own
    assert not torch.compiler.is_exporting() and torch.compiler.is_exporting.__module__ == "torch.compiler"


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.export traces no derivatives before torch 2.13")
@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "vjp"])
def test_what_derives_itself_is_captured_below_autograd(transform):
    """torch.export refuses these, or makes a constant of the input."""

    def derived(x):
        if transform == "vjp":
            return torch.func.vjp(lambda y: (y * y).sum(1), x)[1](x[:, 0])[0]
        return torch.func.vmap(getattr(torch.func, transform)(lambda y: y.sin() * y.sum()))(x)

    graph = ir.capture(derived, (x := torch.randn(4, 3),))
    assert graph.context.rung.name == DERIVED
    torch.testing.assert_close(run(graph, x)[0], derived(x))


def test_a_transform_that_fails_leaves_torch_as_it_was():
    """torch's strict mode would stay within it."""

    def twice(x):
        return torch.func.vmap(torch.func.hessian(lambda y: torch.nn.functional.silu(y).sum()))(x)

    with pytest.raises(ir.CaptureError, match="forward AD"):
        ir.capture(twice, (torch.ones(4, 3),))
    torch.randn(2)  # refused within vmap


def test_a_program_that_exists_has_none():
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    assert ir.capture(program).context.rung is None


def test_the_number_read_is_the_size_of_what_is_made_of_it():
    graph = ir.capture(lambda n: torch.zeros(int(n.item()), 2), (torch.tensor(3),))
    (size,) = (d for d in graph.outputs[0].type.shape if not isinstance(d, int))
    assert graph.sources[str(size)].value is graph.inputs[0]


def test_all_refuse_and_each_is_named():
    def branch(x, n):
        return x + 1 if n.item() > 3 else x - 1

    with pytest.raises(ir.CaptureError) as caught:
        ir.capture(branch, (torch.ones(4), torch.tensor(3)))
    first, *others = str(caught.value).splitlines()
    assert first == "torch.export refused the model: it asks whether u0 > 3, which depends on the data"
    assert "test_ladder.py" in others[0] and "`return x + 1 if n.item() > 3 else x - 1`" in others[0]
    assert "torch.where or torch.cond" in others[1]
    assert "TORCH_LOGS" in str(caught.value.__cause__) and "TORCH_LOGS" not in str(caught.value)
    assert len(others) == 2
    assert [line.partition(":")[0] for line in caught.value.__notes__] == [PLAIN, DEFERRED, STRICT]


def test_what_stands_in_the_way_is_told_and_not_what_a_later_rung_gets_past():
    """Longformer: a size in a tensor, which is followed, and behind it a branch on data."""

    def model(x):
        x = x.view(torch.div(x.shape[0], 2, rounding_mode="trunc"), 2)
        if (x > 0).any().item():
            x = x + 1
        return x

    with pytest.raises(ir.CaptureError) as caught:
        ir.capture(model, (torch.ones(8),), dynamic_shapes=({0: "n"},))
    assert "`if (x > 0).any().item():`" in str(caught.value).splitlines()[1]


def test_packed_sequences_are_told_with_what_to_write():
    lstm = torch.nn.LSTM(3, 4, batch_first=True)

    def model(x, mask):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, mask.sum(1), batch_first=True, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]

    with pytest.raises(ir.CaptureError, match="a packed sequence has sizes that its data decides") as caught:
        ir.capture(model, (torch.ones(2, 5, 3), torch.ones(2, 5, dtype=torch.int64)), dynamic_shapes=({0: "b"},) * 2)
    assert "pack" in str(caught.value).splitlines()[1] and "mask its results" in str(caught.value)


def test_a_count_that_torch_loses_is_told_with_what_to_write():
    given = torch.ones(4, 4), torch.tensor([True, False, True, False]), torch.tensor([1, 2])
    shapes = ({0: "n"}, {0: "n"}, None)
    with pytest.raises(ir.CaptureError, match="as many elements as data decides") as caught:
        ir.capture(lambda x, mask, places: x[mask, places], given, dynamic_shapes=shapes)
    assert "x[mask, places]" in str(caught.value) and "mask.nonzero()" in str(caught.value)
    assert "docs.google" not in str(caught.value)

    def written(x, mask, places):
        rows = mask.nonzero().squeeze(1)
        torch._check(rows.shape[0] == places.shape[0])
        return x[rows, places]

    ir.capture(written, given, dynamic_shapes=shapes)


def test_the_line_that_fixes_a_size_is_named():
    def model(x):
        total = x[:, 0]
        for i in range(x.shape[1]):
            total = total + x[:, i]
        return total

    with pytest.raises(ir.CaptureError) as caught:
        ir.capture(model, (torch.ones(2, 4),), dynamic_shapes=({0: "b", 1: "n"},))
    said = [line.strip() for line in str(caught.value).splitlines()]
    assert said[1].startswith("the axis 1 of x is fixed at ") and said[1].endswith("`for i in range(x.shape[1]):`")
    assert said[2].startswith("leave them out there, or write the line")


def test_distributions_do_not_check_their_parameters_while_captured(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # torch's own tracer turns it off

    def model(x):
        return torch.distributions.Normal(x, x.exp()).log_prob(x + 1), torch.distributions.Categorical(
            x.exp()
        ).entropy()

    x = torch.randn(3, 4)
    graph = ir.capture(model, (x,), dynamic_shapes=({0: "b"},))
    assert graph.context.rung.name == "non-strict"
    for value, own in zip(graph.context.reference(graph, (x,), {}), model(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(value), own)
    with pytest.raises(ValueError, match="invalid values"):
        torch.distributions.Normal(x, -x.exp())


class Framed(torch.nn.Module):
    """Encodec's padding: the convolution's numbers are buffers, and the pad is computed of them and of the size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(4))
        self.register_buffer("kernel", torch.tensor(6))
        self.layer = torch.nn.Conv1d(2, 2, 6, 4)

    def forward(self, x):
        length = x.shape[-1]
        frames = torch.ceil((length - self.kernel) / self.stride + 1).to(torch.int64) - 1
        missing = frames * self.stride + self.kernel - length
        if length <= max(0, missing):
            x = x * 2
        return self.layer(torch.nn.functional.pad(x, (0, missing)))


def test_numbers_in_tensors_are_followed():
    model, x = Framed(), torch.randn(2, 2, 17)
    graph = ir.capture(model, (x,), dynamic_shapes=({0: "b", 2: "n"},))
    assert graph.context.rung.name == FOLLOWED
    assert "forward" not in vars(model)
    for size in (18, 21, 40):
        other = torch.randn(1, 2, size)
        (value,) = graph.context.reference(graph, (other,), {})
        torch.testing.assert_close(torch.as_tensor(value), model(other))


def test_a_conversion_that_changes_nothing():
    """torch.export cannot swap parameters, and a forward may ask for the type that its layer has."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            self.layer = self.layer.to(self.layer.weight.dtype)
            return self.layer.to(x.device, torch.float32)(x)

    graph = ir.capture(Model(), torch.ones(2, 3))
    assert str(graph.context.rung) == "captured by torch.export, non-strict"
    with pytest.raises(ir.CaptureError):
        ir.capture(lambda x: torch.nn.Linear(3, 3).to("a device")(x), torch.ones(2, 3))


def test_distances_of_any_number_of_points():
    graph = ir.capture(lambda x: torch.cdist(x, x), (torch.ones(5, 3),), dynamic_shapes=({0: "n"},))
    assert graph.symbols["n"].max is None


def test_products_over_axes_ask_for_no_size_of_one():
    """torch's rules do, and where conditions on sizes are assertions the program refused to run at 1."""

    def model(x, y):
        rows = torch.inner(x, x), torch.tensordot(x, x, ([1], [1])), torch.tensordot(x, x[:1], ([0], [0]))
        return *rows, torch.inner(x, torch.tensor(2.0)), *torch.tensor_split(y, 2)

    graph = ir.capture(model, (torch.ones(3, 6), torch.ones(3)), dynamic_shapes=({0: "n"}, {0: "n"}))
    assert "deferred" in str(graph.context.rung)
    assert "aten::_assert_scalar" not in [n.op for n in graph.nodes] and graph.symbols["n"].min == 0
    assert [str(v.type) for v in graph.outputs[:3]] == ["f32[n, n]", "f32[n, n]", "f32[6, 6]"]
    with pytest.raises(ir.CaptureError, match="the sizes 6 and 5 must be equal"):
        ir.capture(lambda x: torch.inner(x, x[:, 1:]), torch.ones(3, 6))


def test_a_condition_that_became_an_assertion_is_told():
    def model(x):
        return x + 1 if x.shape[0] % 2 == 0 else x - 1

    with pytest.warns(UserWarning, match=r"right only where\n  \(n % 2\) == 0  \(.*test_ladder.py:\d+\)$"):
        graph = ir.capture(model, (torch.ones(8),), dynamic_shapes=({0: Dim("n")},))
    assert "aten::_assert_scalar" in [n.op for n in graph.nodes]


def test_an_equality_of_names_is_no_branch():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch gives others, of Python 3.13.0 for instance
        ir.capture(
            lambda x, n: torch.zeros(int(n.item()), 3) + x,
            (torch.ones(5, 3), torch.tensor(5)),
            dynamic_shapes=({0: "n"}, {}),
        )


class Careless(torch.nn.Module):
    """Leaves things at itself while it runs, and branches on data at the end."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails
        self.register_buffer("total", torch.zeros(3))
        self.linear = torch.nn.Linear(3, 3)
        self.seen = []
        self.by_name = {"old": [1]}
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen.append(x)
        self.by_name["new"] = x
        self.by_name["old"].append(2)
        self.training = False
        self.extra = 1
        self.total.add_(1)
        y = self.linear(x) + self.total
        return y + 1 if self.fails and y.sum() > 0 else y


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_was(fails):
    model = Careless(fails)
    tensors = dict(model.state_dict())
    before = dict(vars(model))
    if fails:
        with pytest.raises(ir.CaptureError):
            ir.capture(model, (torch.ones(3),))
    else:
        ir.capture(model, (torch.ones(3),))
    assert vars(model).keys() == before.keys() and all(vars(model)[k] is v for k, v in before.items())
    assert model.seen == [] and model.by_name == {"old": [1]} and model.calls == 0 and model.training
    assert all(torch.equal(model.state_dict()[k], t) for k, t in tensors.items())
    assert all(type(t) is torch.Tensor for t in model.state_dict().values()) and not model.total.any()


def test_what_a_container_holds_twice_or_in_itself():
    model = torch.nn.ReLU()
    model.loop = [1]
    model.loop.append(model.loop)
    model.names = {"a"}
    with ladder.unchanged(model):
        model.names.add("b")
        model.loop.pop()
    assert model.loop[1] is model.loop and model.names == {"a"}


class Counted(torch.nn.Module):
    """A number that one call leaves for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("kept", torch.zeros(3, 4))


class FirstCall(Counted):
    def forward(self, x):
        y = x * 10 if self.calls == 0 else x
        self.calls += 1
        return y


class Appended(Counted):
    def forward(self, x):
        self.kept[:, self.calls] = x[:, 0]
        self.calls.view(1).add_(1)
        return self.kept.sum(1)


@pytest.mark.parametrize("model", [FirstCall(), Appended()])
def test_a_number_that_the_model_changes_is_not_followed(model):
    try:
        graph = ir.capture(model, (torch.ones(3, 4),))
    except ir.CaptureError as error:
        assert "the model reads calls as a Python number and writes to it" in str(error)
    else:  # torch 2.14 has indices that are read at run time
        assert type(model) is Appended and any(n.op == "ir::item" for n in graph.nodes)


def test_torch_logs_nothing_on_the_way_to_a_refusal():
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("torch", *logging.root.manager.loggerDict) if name[:5] == "torch"]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with pytest.raises(ir.CaptureError, match="Unsupported input type"):
            ir.capture(lambda x: torch.isin(True, x), (torch.ones(3) > 0,))
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert not [r.name for r in records if r.levelno >= logging.WARNING]


def test_a_size_that_is_fixed_is_told_by_its_name_and_line():
    def repeated(x):
        return torch.vander(x[0], x.shape[1])

    with pytest.raises(ir.CaptureError, match=r"(?s)n is 3 whatever comes.*the axis 1 of x is fixed at .*torch.vander"):
        ir.capture(repeated, (torch.randn(2, 3),), dynamic_shapes=({1: Dim("n", min=2)},))


def test_a_size_that_a_kernel_of_torch_fixes_is_told_by_its_place_in_an_argument_and_line():
    def model(d, *more):
        return d["q"][0] + torch.ones(2, 3), torch.ones(3, 2) @ more[0]

    x = torch.randn(2, 3)
    with pytest.raises(ir.CaptureError) as refused:
        ir.capture(model, ({"q": [x]}, x), dynamic_shapes=({"q": [{0: "n"}]}, ({0: "m"},)))
    said = str(refused.value)
    assert "the axis 0 of d['q'][0] is 2 whatever comes" in said and "the axis 0 of more[0] is 2 whatever comes" in said
    assert re.search(r"the axis 0 of d\['q'\]\[0\] is fixed at .*test_ladder.py:\d+  `return d", said)


class Forces(torch.nn.Module):
    """Differentiates its energy by autograd, as interatomic potentials do; `by_func` says it with torch.func."""

    def __init__(self, by_func: bool) -> None:
        super().__init__()
        self.layer, self.by_func = torch.nn.Linear(3, 1), by_func

    def forward(self, x):
        if self.by_func:
            return -torch.func.grad(lambda x: self.layer(x).tanh().sum())(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return -torch.autograd.grad(self.layer(x).tanh().sum(), x)[0]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.export traces no derivatives before torch 2.13")
def test_a_gradient_of_autograd_is_refused_with_the_line_and_what_to_write():
    with pytest.raises(ir.CaptureError, match=r"differentiates by autograd(.|\n)*test_ladder.py(.|\n)*torch.func.grad"):
        ir.capture(Forces(by_func=False), (torch.randn(4, 3),))
    assert ir.capture(Forces(by_func=True), (torch.randn(4, 3),)).outputs[0].type.shape == (4, 3)


def test_torch_has_its_own_functions_of_autograd_after_a_capture():
    before = torch.autograd.grad, torch.autograd.backward
    ir.capture(torch.nn.Linear(3, 1), (torch.randn(4, 3),))
    assert before == (torch.autograd.grad, torch.autograd.backward)


@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_what_torchs_own_recurrent_modules_assign_is_no_warning(kind, recwarn):
    ir.capture(torch.nn.Sequential(kind(3, 4)), (torch.ones(5, 2, 3),))
    assert not recwarn.list


def test_what_the_model_assigns_is_a_warning():
    class Keeps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.zeros(1)

        def forward(self, x):
            self.last = x.sum()
            return x + 1

    with pytest.warns(UserWarning, match=r"self.last was assigned during export.*register_buffer"):
        ir.capture(Keeps(), (torch.ones(3),))


class Counting(torch.nn.Module):
    def __init__(self, counts: bool):
        super().__init__()
        self.calls, self.counts = 0, counts

    def forward(self, x):
        if self.counts:
            self.calls += 1
        return x + self.calls


def test_a_number_that_the_model_counts_on_is_told(recwarn):
    model = torch.nn.Sequential(Counting(counts=False))
    ir.capture(model, torch.ones(2))
    assert not recwarn.list
    model[0].counts = True
    with pytest.warns(UserWarning, match=r"forward changes 0\.calls from 0 to 1, Python numbers: .* of the program"):
        ir.capture(model, torch.ones(2))
    assert model[0].calls == 0 and not model._forward_hooks
