"""What verification runs: the example, other sizes, and what it leaves out and says so."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch.export import Dim

import ir
from ir.trial import Trial

TARGET = SimpleNamespace(stored_weights=lambda graph: {}, has_ranks=False, notes=lambda artifact: ())


class Runner:
    """torch's own program as a runtime; `spoil` may change the results or raise."""

    def __init__(self, graph, spoil=lambda results: results):
        self.graph, self.spoil = graph, spoil
        self.shapes = []

    def __call__(self, *inputs):
        self.shapes.append([tuple(t.shape) for t in inputs])
        module = self.graph.context.program.module()
        with torch.no_grad():
            results = module(*[int(t) if isinstance(i, ir.importer.calling_convention.Integer) else t
                               for t, i in zip(inputs, self.graph.structure.inputs, strict=True)])  # fmt: skip
        return self.spoil(list(torch.utils._pytree.tree_leaves(results)))


def tried(model, *args, shapes=None, spoil=lambda results: results):
    """The report, and the shapes of the inputs of each run."""
    graph = ir.capture(model, args, dynamic_shapes=shapes)
    runner = Runner(graph, spoil)
    report = Trial(graph, TARGET, runner).run(args, {}, others=True)
    return report, runner.shapes


def sizes(shapes, axis=0):
    return [run[0][axis] for run in shapes]


def test_every_dynamic_dimension_is_run_at_other_sizes():
    report, shapes = tried(lambda x: x * 2, torch.ones(4, 3, 6), shapes=({0: "b", 2: "t"},))
    assert shapes == [[(4, 3, 6)], [(5, 3, 8)], [(1, 3, 1)], [(0, 3, 0)]]
    assert report.ok and [r.sizes for r in report.rows] == ["b=4, t=6", "b=5, t=8", "b=1, t=1", "b=0, t=0"]
    assert str(report).splitlines()[1] == "output at b=5, t=8: float32[5, 3, 8] max error 0 (scale 2)"


def test_a_static_model_runs_once():
    report, shapes = tried(lambda x: x * 2, torch.ones(4))
    assert shapes == [[(4,)]] and str(report).startswith("output: float32[4] max error 0 (scale 2)")


def test_sizes_keep_to_their_range():
    _, shapes = tried(lambda x: x * 2, torch.ones(4), shapes=({0: Dim("b", min=3, max=4)},))
    assert sizes(shapes) == [4, 3]
    _, shapes = tried(lambda x: x * 2, torch.ones(4), shapes=({0: Dim("b", min=4, max=5)},))
    assert sizes(shapes) == [4, 5]


def test_equal_and_derived_dimensions_change_together():
    half = Dim("half")
    _, shapes = tried(
        lambda x, y, z: x.sum() + y + z, torch.ones(6), torch.ones(3), torch.ones(3),
        shapes=({0: 2 * half}, {0: half}, {0: half}),
    )  # fmt: skip
    assert shapes[1] == [(8,), (4,), (4,)] and [(2,), (1,), (1,)] in shapes


def test_sizes_that_torch_refuses_are_left_out_and_said():
    def even(x):
        return x + 1 if x.shape[0] % 2 == 0 else x - 1

    with pytest.warns(UserWarning, match="branches"):
        report, shapes = tried(even, torch.ones(4), shapes=({0: "n"},))
    assert sizes(shapes) == [4, 8, 0]
    assert "not run at n=1: torch refuses it: Guard failed" in str(report)


def test_where_not_all_can_change_each_is_tried_alone():
    def model(x, y):
        return torch.nn.functional.max_pool1d(x[None], 4), y + 1

    _, shapes = tried(model, torch.ones(2, 9), torch.ones(3), shapes=({1: Dim("t", min=4)}, {0: "n"}))
    assert shapes == [[(2, 9), (3,)], [(2, 11), (4,)], [(2, 4), (3,)], [(2, 9), (1,)], [(2, 9), (0,)]]


def test_indices_stay_in_range_and_sorted():
    def gathered(x, index):
        return x[index] + torch.searchsorted(index, index)[:, None]

    index = torch.tensor([0, 2, 3, 4, 4, 4])
    report, shapes = tried(gathered, torch.randn(5, 2), index, shapes=({0: "n"}, {0: "e"}))
    assert [(1, 2), (1,)] in shapes and [(7, 2), (7,)] in shapes and "refuses" not in str(report)


def test_a_number_among_the_arguments():
    _, shapes = tried(lambda x, n: x + n, torch.ones(4), 3, shapes=({0: "b"}, Dim.DYNAMIC))
    assert sizes(shapes) == [4, 5, 1, 0]


@pytest.mark.parametrize("size", [4, 5, 1])
def test_what_is_wrong_at_one_size_alone(size):
    def spoil(results):
        return [r + 1 if r.shape[0] == size else r for r in results]

    report, _ = tried(lambda x: (x * 2, x.sum()[None].expand(7)), torch.ones(4), shapes=({0: "b"},), spoil=spoil)
    assert not report.ok
    with pytest.raises(ir.MismatchError, match=rf"torch:\noutput_0 at b={size}: .*MISMATCH: {size} of {size} .*\n\("):
        report.check()


def test_a_runtime_that_fails_where_torch_does_not():
    def failing(at, error):
        def spoil(results):
            if results[0].shape[0] == at:
                raise error
            return results

        return spoil

    model, args, shapes = lambda x: x * 2, torch.ones(4), ({0: "b"},)
    with pytest.raises(ir.RuntimeFailure, match="the artifact fails at b=5, where torch does not: no"):
        tried(model, args, shapes=shapes, spoil=failing(5, ir.RuntimeFailure("no")))
    report, _ = tried(model, args, shapes=shapes, spoil=failing(0, ir.RuntimeFailure("no")))
    assert report.ok and "not run at b=0: no" in str(report)


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))

    def forward(self, x):
        picked = x[torch.rand_like(x) > 0.5]
        return {"noisy": self.inner(x) + 1, "plain": x * 2, "picked": picked}


def test_random_results_are_named_and_the_others_compared():
    report, _ = tried(Noisy(), torch.randn(4, 3), shapes=({0: "n"},))
    noisy, plain, picked = report.rows[:3]
    assert noisy.skipped.startswith("dropout at inner.1 (") and noisy.skipped.endswith(" draws random numbers")
    assert "noisy at n=4: float32[4, 3] not compared: dropout" in str(noisy)
    assert picked.skipped.startswith("rand_like at ") and not plain.skipped
    assert math.isnan(noisy.error) and report.error == 0
    assert "captured in training mode: dropout at inner.1" in str(report)

    def spoil(index, change):
        return lambda results: [change(r) if i == index else r for i, r in enumerate(results)]

    wrong, _ = tried(Noisy(), torch.randn(4, 3), shapes=({0: "n"},), spoil=spoil(1, lambda r: r + 1))
    assert not wrong.ok
    wrong, _ = tried(Noisy(), torch.randn(4, 3), shapes=({0: "n"},), spoil=spoil(0, lambda r: r[1:]))
    assert not wrong.ok
    wrong, _ = tried(Noisy(), torch.randn(4, 3), shapes=({0: "n"},), spoil=spoil(2, lambda r: r.double()))
    assert not wrong.ok


def test_nothing_compared_has_no_error():
    report, _ = tried(torch.nn.Dropout(), torch.ones(3))
    assert report.ok and math.isnan(report.error) and "max error" not in str(report)


def program_of(model, *args, shapes=None):
    graph = ir.capture(model, args, dynamic_shapes=shapes)
    program = ir.Exported(TARGET, graph, None)
    program.__dict__["runner"] = Runner(graph)
    return program


def test_a_report_without_verification():
    program = program_of(lambda x: x + 1, torch.ones(3))
    assert program.report.rows == () and str(program.report).endswith("non-strict\nnot compared with torch")
    assert len(program.verify().rows) == 1 and "captured by torch.export, non-strict" in str(program.report)
    assert "not compared" not in str(program.report)


def test_given_arguments_are_run_as_they_are():
    program = program_of(lambda x: x + 1, torch.ones(3), shapes=({0: "n"},))
    assert [r.sizes for r in program.verify((torch.ones(7),)).rows] == ["n=7"]
    assert [r.sizes for r in program.verify().rows] == ["n=3", "n=4", "n=1", "n=0"]


def test_arguments_that_torch_refuses_are_refused_by_its_reason():
    graph = ir.capture(lambda x: x.reshape(4, -1).sum(1), (torch.ones(8, 3),), dynamic_shapes=({0: "n"},))
    with pytest.raises(ir.RefusedError, match=r"torch's own program does not run .*: shape '\[4, -1\]' is invalid"):
        Trial(graph, TARGET, Runner(graph)).run((torch.ones(7, 3),), {}, others=False)


def test_sizes_out_of_range_are_refused_in_the_graphs_words():
    graph = ir.capture(lambda x: x.reshape(1, -1), (torch.ones(8),), dynamic_shapes=({0: Dim("n", min=4, max=9)},))
    with pytest.raises(ir.RefusedError, match="n"):
        Trial(graph, TARGET, Runner(graph)).run((torch.ones(12),), {}, others=False)


# -- deep models, where torch's own float32 is as far from float64 as the tolerance ------------------------------------


class Deep(torch.nn.Module):
    """Forty layers that double any difference: torch's float32 lies up to 1e-3 from its float64."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            turns = [2 * torch.linalg.qr(torch.randn(64, 64))[0] for _ in range(40)]
        self.layers = torch.nn.ParameterList(turns)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        start = torch.zeros(64, dtype=torch.float32)
        for turn in self.layers:
            x = torch.tanh(x.to(torch.float32) @ turn + start)
        return x


def deep(change=lambda y: y):
    """The report of a runtime that computes the model exactly, but for a change."""
    model, x = Deep(), torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    exact = x.double()
    for turn in model.layers:
        exact = torch.tanh(exact @ turn.detach().double())
    results = [change(exact).float(), torch.ones(())]
    return Trial(ir.capture(model, (x,)), TARGET, lambda *inputs: results).run((x,), {}, others=False)


def test_an_exact_runtime_is_right_where_torch_rounds():
    report = deep()
    assert report.ok and report.rows[0].error > 3e-4 and "torch's own float32 is" in str(report)


def noise(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


FAULTS = {
    "one in a thousand too large": lambda y: y * 1.001,
    "shifted": lambda y: y + 5e-4,
    "through bfloat16": lambda y: y.bfloat16().double(),
    "one row wrong": lambda y: torch.cat([y[:-1], y[-1:] * 1.01]),
    "one element wrong": lambda y: torch.cat([y.flatten()[:-1], y.flatten()[-1:] + 5e-3]).view_as(y),
    "rounding four times torch's": lambda y: y + 3e-4 * noise(y.shape),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_do_not_hide_behind_torchs_rounding(fault):
    report = deep(FAULTS[fault])
    assert not report.ok and "torch's own float32 is" in str(report)


def test_a_tolerance_that_was_given_is_kept():
    model, x = Deep(), torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    exact = x.double()
    for turn in model.layers:
        exact = torch.tanh(exact @ turn.detach().double())
    trial = Trial(ir.capture(model, (x,)), TARGET, lambda *inputs: [exact.float(), torch.ones(())], atol=1e-4)
    assert not trial.run((x,), {}, others=False).ok


def test_an_op_without_a_kernel_in_float64_leaves_float32_to_compare_with():
    def bits(x):
        return x.view(torch.int32).view(torch.float32) + 1

    report, _ = tried(bits, torch.ones(3), spoil=lambda results: [results[0] + 1e-2])
    assert not report.ok and "float64" not in str(report)


def test_a_model_that_raises_where_its_program_does_not_is_noted():
    def needs_two(x):
        if x.shape[0] < 2:
            raise ValueError("two at least")
        return x + 1

    report, _ = tried(needs_two, torch.ones(4), shapes=({0: "n"},))
    assert report.ok and [r.sizes for r in report.rows] == ["n=4", "n=5", "n=1", "n=0"]
    said = [n for n in report.notes if "the model itself raises" in n]
    assert [n.partition(" the model")[0] for n in said] == ["at n=1", "at n=0"]
    assert all("ValueError: two at least at " in n and "test_trial.py" in n for n in said)


def test_a_range_that_is_narrower_than_was_asked_is_noted():
    def loss(x):
        return torch.nn.functional.cross_entropy(x[:, :-1].reshape(-1, 5), x[:, 1:, 0].reshape(-1).long())

    report, _ = tried(loss, torch.ones(2, 4, 5), shapes=({0: "b", 1: "s"},))
    (said,) = [n for n in report.notes if "asks for every size" in n]
    assert said.startswith("s is from 3 on in the program") and "asked whether (s - 1) != 1 and" in said
    asked = torch.export.Dim("s", min=3)
    report, _ = tried(loss, torch.ones(2, 4, 5), shapes=({0: "b", 1: asked},))
    assert not any("asks for every size" in n for n in report.notes)
