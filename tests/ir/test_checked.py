"""What a .pt2 file's numbers make torch's kernels do: those that look at nothing are not run on them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import ir
from ir.errors import RefusedError
from ir.importer.checked import CHECKED_VIEWS, Checked, UncheckedError, is_checked, kernels_of_file, verifying
from ir.importer.torch_api import schema_of
from ir.importer.unchecked_numbers import is_division
from ir.passes.fold_constants import fold_constants
from tests.ir.probe_kernels import operators
from tests.ir.unchecked_kernels import CALLS, LEAST, A, Model, ints, lines_of, saved

PROBE = "tests.ir.probe_kernels"


def test_the_views_that_reach_beyond_their_memory_are_those_that_torch_does_not_check() -> None:
    found = {*lines_of(PROBE, "views")}
    assert found | {f"{name}_copy" for name in found} == CHECKED_VIEWS.keys()


def test_what_ends_the_process_for_some_integers_is_a_division() -> None:
    found = {*lines_of(PROBE, "divisions")}
    assert "aten::div" in found
    assert not [o for o in operators() if schema_of(o).name in found and not is_division(o)]


def test_core_kernels_look_at_where_their_operands_point() -> None:
    assert lines_of(PROBE, "pointing") == []


def test_kernels_that_trust_their_operands_run_bare_alone() -> None:
    mended = {"repeats"} if torch.__version__ >= "2.14" else set()
    assert lines_of(PROBE, "bare") == [f"{name} nullcontext" for name in CALLS if name not in mended]


def test_folding_runs_no_kernel_that_trusts_a_file_nor_the_least_integer_by_minus_one() -> None:
    assert lines_of(PROBE, "folding") == []


def test_verification_runs_no_kernel_that_trusts_a_file() -> None:
    assert lines_of(PROBE, "verified") == []


def test_documented_functions_look_at_their_arguments() -> None:
    assert lines_of("tests.ir.probe_documented") == []


@pytest.mark.parametrize("name", ["aten::_fft_r2c", "aten::_embedding_bag", "aten::embedding_dense_backward",
                                  "aten::resize_", "aten::set_", "aten::_reshape_alias", "aten::_pdist_forward",
                                  "aten::segment_reduce", "aten::searchsorted", "aten::mkldnn_rnn_layer",
                                  "aten::special_hermite_polynomial_h", "aten::_ctc_loss"])  # fmt: skip
def test_what_no_tag_speaks_for_is_not_run(name: str) -> None:
    assert not [o for o in operators() if schema_of(o).name == name and is_checked(o)]


X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("call", [
    lambda: torch.tril(X), lambda: torch.ones(3), lambda: torch.arange(3) // 2, lambda: X @ X.T, lambda: X.reshape(-1),
    lambda: torch.stack([X, X]), lambda: X.masked_fill(X > 1, torch.tensor(2.0)), lambda: X[:, torch.tensor([0, 2])],
    lambda: torch.bucketize(X, X[0]), lambda: X.softmax(1), lambda: torch.linspace(0, 1, 3), lambda: X.half(),
    lambda: torch.einsum("ij,kj->ik", X, X), lambda: torch.roll(X, 1, 0), lambda: A.lift_fresh_copy(X),
    lambda: A._reshape_alias(X, [2, 6], [6, 1]),
])  # fmt: skip
def test_what_masks_and_positions_are_made_of_is_run_by_its_parts(call: Any) -> None:
    with Checked():
        made = call()
    torch.testing.assert_close(made, call())


def test_a_window_whose_size_no_integer_holds_is_refused() -> None:
    """torch's im2col gives a tensor of a size below 0 for it."""
    with verifying(), pytest.raises(RuntimeError, match="must be at least one"):
        A.im2col(torch.ones(1, 4, 4), [2**32, 2**32], [1, 1], [0, 0], [1, 1])


def test_an_op_is_refused_before_it_runs() -> None:
    with Checked(), pytest.raises(UncheckedError, match="searchsorted"):
        torch.searchsorted(X[0], X)
    with Checked(), pytest.raises(RuntimeError, match="out of bounds"):
        A._reshape_alias(X, [400], [1])


@pytest.mark.parametrize("op", [A.div.Tensor_mode, A.floor_divide.default, A.remainder.Tensor, A.fmod.Tensor])
def test_a_division_by_zero_is_told(op: Any) -> None:
    mode = {"rounding_mode": "trunc"} if op is A.div.Tensor_mode else {}
    graph = ir.capture(Model(lambda a, b: op(a, b, **mode), ints(3), ints(0)), (torch.ones(3),))
    folded = fold_constants(graph)
    with pytest.raises(RefusedError, match="torch fails to compute a constant"):
        for weight in folded.weights.values():
            weight.numpy()


def test_a_division_that_has_a_result_is_folded_in_a_live_model() -> None:
    graph = ir.capture(Model(lambda a, b: a // b, ints(LEAST, 7), ints(2)), (torch.ones(3),))
    assert not [n for n in fold_constants(graph).nodes if n.op == "aten::floor_divide"]
    graph = ir.capture(Model(lambda a, b: a // b, ints(LEAST, 7), ints(-1)), (torch.ones(3),))
    assert [n for n in fold_constants(graph).nodes if n.op == "aten::floor_divide"]


def test_a_live_model_is_folded_by_any_kernel_and_a_file_by_those_that_check(tmp_path: Path) -> None:
    model = Model(lambda a, b: torch.searchsorted(a, b), torch.arange(4.0), torch.ones(2))
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (torch.ones(3),)), path)
    for given, kept in ((model, False), (path, True)):
        graph = fold_constants(ir.capture(given, (torch.ones(3),)))
        assert any(n.op == "aten::searchsorted" for n in graph.nodes) == kept


class Cast(torch.nn.Module):
    """What torch traces anew when it is read: autocast."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x


def test_a_graph_knows_that_it_is_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cast.pt2"
    program = torch.export.export(Cast(), (torch.ones(3, 3),))
    torch.export.save(program, path)
    assert not ir.capture(program).context.of_file
    for graph in (ir.capture(path), ir.capture(saved("pool", tmp_path))):
        assert graph.context.of_file
        assert pickle.loads(pickle.dumps(graph)).context.of_file


def test_a_file_is_read_with_views_that_look_at_their_memory(tmp_path: Path) -> None:
    path = tmp_path / "alias.pt2"
    torch.export.save(torch.export.export(Model(lambda a: A._reshape_alias(a, [2, 2], [2, 1]), X[0]), (X,)), path)
    ops = {n.op for n in ir.capture(path).nodes}
    assert "aten::_reshape_alias" not in ops and ops.isdisjoint(CHECKED_VIEWS)


VALUES, INDICES = torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.int64)


@pytest.mark.parametrize("call", [
    lambda: torch.searchsorted(X[0], X), lambda: torch.sort(X, stable=True), lambda: torch.fft.rfft(X).abs(),
    lambda: torch.linalg.inv(X @ X.T + torch.eye(3)), lambda: torch.unique(X), lambda: torch.cdist(X, X),
    lambda: torch.nn.functional.embedding_bag(torch.tensor([[0, 1]]), X), lambda: torch.nn.functional.max_pool1d(X, 2),
    lambda: torch.nn.functional.adaptive_max_pool2d(torch.ones(1, 1, 5, 5), 3), lambda: torch.cummax(X, 0)[0],
    lambda: torch.cond(X.sum() > 0, lambda x: x + 1, lambda x: x - 1, (X,)), lambda: torch.repeat_interleave(X, 2),
    lambda: torch.nn.functional.grid_sample(torch.ones(1, 1, 2, 2, 2), torch.zeros(1, 1, 1, 1, 3), align_corners=True),
    lambda: A.__and__.Tensor(X > 1, X < 3), lambda: A.__or__.Tensor(X[:0] > 1, X[:0] < 3), lambda: X.mvlgamma(2),
    lambda: torch.special.legendre_polynomial_p(X, 3), lambda: torch.linalg.matrix_power(X[:, :3], 5),
])  # fmt: skip
def test_a_file_of_documented_functions_is_verified(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Model(lambda _: call(), torch.ones(1)), (torch.ones(3),), strict=False), path)
    graph = ir.capture(path)
    assert graph.context.reference(graph, (torch.ones(3),), {})


@pytest.mark.parametrize("net", [torch.nn.LSTM(4, 5), torch.nn.GRU(4, 5, batch_first=True), torch.nn.Conv1d(4, 2, 1),
                                 torch.nn.MultiheadAttention(4, 2)], ids=lambda n: type(n).__name__)  # fmt: skip
def test_a_file_of_modules_is_verified(net: torch.nn.Module, tmp_path: Path) -> None:
    path, x = tmp_path / "m.pt2", torch.randn(2, 4, 4)
    args = (x,) * (3 if isinstance(net, torch.nn.MultiheadAttention) else 1)
    torch.export.save(torch.export.export(net.eval(), args, strict=False), path)
    graph = ir.capture(path)
    expected = torch.export.export(net, args, strict=False).module()(*args)
    first = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(torch.from_numpy(graph.context.reference(graph, args, {})[0]), first.detach())


def test_what_is_not_verified_is_told_with_a_way_out(tmp_path: Path) -> None:
    graph = ir.capture(saved("pool3d", tmp_path))
    with pytest.raises(RefusedError, match=r"max_pool3d_with_indices_backward.* torch\.export\.load"):
        graph.context.reference(graph, (torch.ones(3),), {})


def test_kernels_that_passes_write_are_run_for_artifacts_alone() -> None:
    def call() -> Any:
        return torch.ops.mkldnn._convolution_pointwise(
            torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1), None, [0, 0], [1, 1], [1, 1], 1, "none", [], None
        )

    with pytest.raises(UncheckedError), verifying():
        call()
    with verifying(fused=True):
        call()


BAG = {"weight": torch.ones(5, 3), "indices": ints(0, 1, 2), "offsets": ints(0, 2), "include_last_offset": False}


@pytest.mark.parametrize(("change", "runs"), [
    ({}, True), ({"offsets": ints(0, 2, 3), "include_last_offset": True}, True), ({"offsets": ints(0, 0, 3)}, True),
    ({"mode": 2}, True), ({"padding_idx": -1}, True), ({"per_sample_weights": torch.ones(3)}, True),
    ({"offsets": ints(0, -1, 2)}, False), ({"offsets": ints(0, 4, 2)}, False), ({"offsets": ints(1, 2)}, False),
    ({"offsets": ints(0, 2), "include_last_offset": True}, False), ({"weight": torch.ones(0, 3)}, False),
    ({"indices": ints(0, 5, 2)}, False), ({"indices": ints(0, -1, 2)}, False), ({"padding_idx": 7}, False),
    ({"per_sample_weights": torch.ones(1)}, False), ({"mode": 3}, False),
])  # fmt: skip
def test_bags_of_honest_files_are_verified(change: dict[str, Any], runs: bool) -> None:
    def call() -> Any:
        given = {"sparse": False, "scale_grad_by_freq": False, "per_sample_weights": None, "padding_idx": None}
        return A.embedding_bag.padding_idx(**{**given, "mode": 0, **BAG, **change})[0]

    if runs:
        with torch.no_grad(), verifying():
            made = call()
        torch.testing.assert_close(made, call())
    else:
        with torch.no_grad(), verifying(), pytest.raises((UncheckedError, RuntimeError)):
            call()


def test_verification_runs_bags_by_chance_alone_that_are_whole() -> None:
    assert lines_of(PROBE, "bags") == []


@pytest.mark.parametrize("call", [
    lambda: A.tensor_split.tensor_indices_or_sections(X, torch.tensor(1 << 40), 0), 
    lambda: A.chunk.default(X[:0], 1 << 40), lambda: A.unsafe_chunk.default(X[:0], 1 << 31),
    lambda: A.tensor_split.sections(X, 1 << 31, 0),
    lambda: A.grid_sampler_2d.default(torch.ones(1, 1, 4, 4), torch.ones(1, 2, 2, 2), 9, 0, True),
    lambda: A.grid_sampler_2d.default(torch.ones(1, 1, 4, 4), torch.ones(1, 2, 2, 2), 0, 9, True),
    lambda: A.grid_sampler_3d.default(torch.ones(1, 1, 4, 4, 4), torch.ones(1, 2, 2, 2, 3), 2, 0, True),
])  # fmt: skip
@pytest.mark.parametrize("block", [Checked, verifying])
def test_pieces_without_end_and_ways_that_are_none_are_refused(call: Any, block: Any) -> None:
    with torch.no_grad(), pytest.raises(UncheckedError, match=r"pieces is not computed|has no modes"), block():
        call()


@pytest.mark.parametrize("call", [
    lambda: A.special_hermite_polynomial_h.default(X, torch.tensor(1e18)), lambda: A.mvlgamma.default(X + 1e9, 1 << 30),
    lambda: A.special_chebyshev_polynomial_t.x_scalar(0.5, torch.tensor([1, 1 << 40])),
    lambda: A.special_legendre_polynomial_p.n_scalar(X, n=1 << 40),
])  # fmt: skip
@pytest.mark.parametrize("block", [Checked, verifying])
def test_steps_without_end_are_refused(call: Any, block: Any) -> None:
    with torch.no_grad(), pytest.raises(UncheckedError, match="steps is not computed"), block():
        call()


ONE, POLE = torch.ones(1), torch.tensor(-1e10 - 0.5, dtype=torch.float64)
HUGE = [2**31 - 1] * 2, [1, 1], [2**30 - 1] * 2  # a window, its step and padding


@pytest.mark.parametrize(("call", "said"), [
    (lambda: A.repeat_interleave.Tensor(ints(1000000, -999990), output_size=10), "copies"),
    (lambda: A.repeat_interleave.self_Tensor(X[0, :2], ints(2**39, 5 - 2**39), 0, output_size=5), "copies"),
    (lambda: A.repeat_interleave.self_int(X, 2**40), "would take"),
    (lambda: A.bincount.default(ints(1, 2**30)), "bins"), (lambda: A.bincount.default(ints(1), None, 2**30), "bins"),
    (lambda: A.histogramdd.default(X[:, :2], [1 << 14, 1 << 14]), "bins"),
    (lambda: A.histogramdd.int_bins(X, 1 << 10), "bins"),
    (lambda: A.histogramdd.TensorList_bins(X, [ONE.expand(1 << 10)] * 4), "bins"),
    (lambda: A.histogram.bin_ct(X, 1 << 30), "bins"), (lambda: A.histc.default(X, 1 << 30), "bins"),
    (lambda: A.linalg_matrix_power.default(X[:, :3], LEAST), "least integer"),
    (lambda: A.matrix_power.default(X[:, :3], LEAST), "least integer"),
    (lambda: A.max_pool2d_with_indices.default(X[None], *HUGE), "windows"),
    (lambda: A.max_pool2d.default(X[None], *HUGE), "windows"),
    (lambda: A.max_pool1d.default(X, HUGE[0][:1], [1], HUGE[2][:1]), "windows"),
    (lambda: A.max_pool3d.default(X[None, None], [1, *HUGE[0]], [1, 1, 1], [0, *HUGE[2]]), "windows"),
    (lambda: A.special_zeta.default(2 * POLE / POLE, POLE), "below"),
    (lambda: A.special_zeta.other_scalar(ONE, float(POLE)), "below"),
    (lambda: A.polygamma.default(2, POLE), "below"),
    (lambda: A.unbind.int(ONE.expand(2**28)), "pieces"), (lambda: A.split.Tensor(ONE.expand(2**28), 1), "pieces"),
    (lambda: A.sum.default(ONE.expand(2**40)), "would read"),
    (lambda: A.argmax.default(ONE.expand(2**36)), "would read"),
    (lambda: A.scaled_dot_product_attention.default(ONE.expand(1, 1, 4, 64), ONE.expand(1, 1, 1, 64),
                                                    ONE.expand(1, 1, 4000000, 64)), "and values"),
])  # fmt: skip
@pytest.mark.parametrize("block", [Checked, verifying, kernels_of_file])
def test_what_kernels_do_not_look_for_is_refused(call: Any, said: str, block: Any) -> None:
    with torch.no_grad(), pytest.raises(UncheckedError, match=said), block():
        call()


@pytest.mark.parametrize(("call", "buffer"), [
    (lambda b: A.polygamma.default(2, b), POLE), (lambda b: A.special_zeta.self_scalar(2, b), POLE),
    (lambda b: A.max_pool2d.default(b, *HUGE), torch.ones(1, 1, 100, 100)),
    (lambda b: A.sum.default(b.expand(2**38)), ONE),
])  # fmt: skip
def test_what_takes_hours_is_not_folded(call: Any, buffer: torch.Tensor, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Model(call, buffer), (torch.ones(3),)), path := tmp_path / "m.pt2")
    for weight in fold_constants(ir.capture(path)).weights.values():
        weight.numpy()


@pytest.mark.parametrize("call", [
    lambda: A.repeat_interleave.self_Tensor(-X[0, :2], ints(2, 3), -1), lambda: A.max_pool2d.default(X[None], [2, 2]),
    lambda: A.bincount.default(ints(1, 3)), lambda: A.histogram.bin_ct(X, 3)[0], lambda: A.histc.default(X, 5),
    lambda: A.histogram.bins_tensor(X, X[0])[0], lambda: A.polygamma.default(2, -X - 0.5),
    lambda: A.unbind.int(X, -1)[0], lambda: A.split.Tensor(X, 2, 1)[0],
    lambda: A.scaled_dot_product_attention.default(X, X, X), lambda: A.special_zeta.default(ints(2), ints(-(10**6))),
    lambda: A.scaled_dot_product_attention.default(X.expand(2, 1, 3, 4), X.expand(1, 1, 3, 4), X.expand(2, 1, 3, 4)),
    lambda: A.matrix_power.default(torch.eye(3), 1 << 40),
])  # fmt: skip
@pytest.mark.parametrize("block", [verifying, kernels_of_file])
def test_what_they_take_is_run(call: Any, block: Any) -> None:
    with torch.no_grad():
        with block():
            made = call()
        torch.testing.assert_close(made, call())


def test_memory_that_is_not_there_is_told() -> None:
    with pytest.raises(RefusedError, match="more memory than there is"), verifying():
        raise MemoryError


@pytest.mark.parametrize("call", [
    lambda: torch.full((1 << 31,), 2.0), lambda: X[0, :1].expand(1 << 31) + 1, lambda: torch.arange(1 << 30),
    lambda: X[:1, :1].expand(60_000, 1) @ X[:1, :1].expand(1, 60_000), lambda: A.fft_fft.default(X[0], 1 << 31),
])  # fmt: skip
def test_what_takes_gigabytes_for_nothing_is_refused(call: Any) -> None:
    with torch.no_grad(), pytest.raises(UncheckedError, match=r"is not run: it would take \d.* GB"), verifying():
        call()


def test_views_and_what_is_made_of_much_take_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad(), verifying():
        assert X[:1, :1].expand(1 << 20, 1 << 20).shape[0] == 1 << 20
        monkeypatch.setattr("ir.importer.memory_bound._PLENTY", 100)
        assert (X.repeat(3, 1) + 1).numel() == 36 and torch.ones(3).sum() == 3


def _counted(x: torch.Tensor, rounds: int, body: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    zero = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, y: i < rounds, lambda i, y: (i + 1, body(y)), (zero, x))[1]


@pytest.mark.parametrize(("limit", "told"), [(("_MOST_ROUNDS", 50), "50 rounds"), (("_MOST_SECONDS", 0), "0 seconds")])
def test_loops_within_loops_have_one_end(
    limit: tuple[str, int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, path = Model(lambda _: torch.zeros(1), torch.ones(1)), tmp_path / "m.pt2"
    net.forward = lambda x: _counted(x, 20, lambda y: _counted(y, 20, lambda z: z + 1))  # type: ignore[method-assign]
    torch.export.save(torch.export.export(net, (torch.ones(3),), strict=False), path)
    graph = ir.capture(path)
    assert graph.context.reference(graph, (torch.ones(3),), {})[0][0] == 401
    monkeypatch.setattr(f"ir.importer.checked.{limit[0]}", limit[1])
    with pytest.raises(RefusedError, match=f"not run any more after {told} of loops"):
        graph.context.reference(graph, (torch.ones(3),), {})


def test_a_loop_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    monkeypatch.setattr("ir.importer.checked._MOST_ROUNDS", 100)
    for step, ends in ((1, True), (0, False)):
        path = tmp_path / f"{step}.pt2"

        def model(x: torch.Tensor, step: int = step) -> Any:
            zero = torch.zeros((), dtype=torch.int64)
            return while_loop(lambda i, y: i < 10, lambda i, y: (i + step, y + 1), (zero, x))

        net = Model(lambda _: torch.zeros(1), torch.ones(1))
        net.forward = model  # type: ignore[method-assign]
        torch.export.save(torch.export.export(net, (torch.ones(3),), strict=False), path)
        graph = ir.capture(path)
        if ends:
            assert graph.context.reference(graph, (torch.ones(3),), {})[1][0] == 11
        else:
            with pytest.raises(RefusedError, match="while_loop is not run any more after 100 rounds"):
                graph.context.reference(graph, (torch.ones(3),), {})
