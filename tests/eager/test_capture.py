"""`Program.capture` against a stand-in for CUDA, which checks streams, recordings and replays: no GPU needed."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eager_backend
import ir
from eager_backend.building import devices
from eager_backend.runtime import cuda_graphs

from .stand_in import Misuse, StandIn, Stream
from .test_program import compiled


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    monkeypatch.setattr(devices, "runtime", stand_in)
    with stand_in.watching():
        yield stand_in


class Net(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("total", torch.zeros(3))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        self.total += y.sum(0)
        return y + self.total


def net() -> Any:
    return ir.export(Net(), (torch.ones(2, 4),), target="eager", dynamic_shapes=({0: "batch"},)).artifact


def inputs(batch: int) -> Tensor:
    return torch.arange(batch * 4.0).view(batch, 4) / 10


def test_replays_give_what_the_program_gives_at_every_size(cuda: StandIn) -> None:
    captured, plain = net().capture(inputs(2)), net()
    plain(inputs(2))
    for batch in (2, 5, 2, 1, 5):
        for actual, expected in zip(captured(inputs(batch)), plain(inputs(batch)), strict=True):
            torch.testing.assert_close(actual, expected)


def test_a_replay_copies_in_replays_and_copies_out_and_does_nothing_else(cuda: StandIn) -> None:
    captured = net().capture(inputs(2))
    given = inputs(2)
    cuda.log.clear()
    results = captured(given)
    assert cuda.log == ["copy_", "replay", *["clone"] * len(results)]


def test_results_and_inputs_are_the_callers_own(cuda: StandIn) -> None:
    captured, given = net().capture(inputs(2)), inputs(2)
    first, *_ = captured(given)
    kept = first.clone()
    given.zero_()
    captured(given)
    assert torch.equal(first, kept)
    assert not {t.data_ptr() for t in captured(given)} & {t.data_ptr() for t in captured(given)}


def test_recording_is_no_call(cuda: StandIn) -> None:
    program, model = net(), Net()
    program.capture(inputs(2))
    with torch.no_grad():
        model(inputs(2))
    torch.testing.assert_close(program.state_dict()["total"], model.total)


def test_new_weights_are_recorded_anew_and_old_ones_may_go(cuda: StandIn) -> None:
    program, plain = net(), net()
    captured = program.capture(inputs(2))
    program.load_state_dict({n: t * 2 for n, t in program.state_dict().items()})
    plain.load_state_dict(program.state_dict())
    gc.collect()
    for actual, expected in zip(captured(inputs(2)), plain(inputs(2)), strict=True):
        torch.testing.assert_close(actual, expected)
    assert cuda.log.count("replay") == 2


def test_callers_on_other_streams_wait_for_each_other(cuda: StandIn) -> None:
    captured, given = net().capture(inputs(2)), inputs(2)
    other = Stream(cuda)
    other.wait_stream(cuda.default)  # for the inputs alone
    with cuda.on_stream(other):
        captured(given)
    captured(given)


class Asks(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.index_put((x > 0,), y) + x[x > 0].sum()


def test_a_step_that_waits_ends_the_recording_and_is_named(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(Asks(), torch.ones(3), torch.tensor(2.0)).artifact
    with pytest.raises(ir.ExportError, match="cannot be captured as a CUDA graph"):
        program.capture(torch.ones(3), torch.tensor(2.0))
    monkeypatch.setattr(cuda_graphs, "obstacles", lambda program: ())  # of which the graph says nothing
    with pytest.raises(ir.ExportError, match=r"not permitted when stream is capturing.*\n.*in the step index"):
        program.capture(torch.ones(3), torch.tensor(2.0))
    assert cuda.stream is cuda.default and cuda.recorded is None
    torch.testing.assert_close(program(torch.ones(3), torch.tensor(2.0))[0], torch.full((3,), 5.0))


# -- the stand-in finds what it is for ---------------------------------------------------------------------------------


def recorded(cuda: StandIn, weight: Tensor) -> tuple[Any, Tensor, Tensor]:
    """A graph of one product, its input and its result."""
    x, graph, side = torch.ones(3), cuda.graph(), cuda.capture_stream(torch.device("cpu"))
    side.wait_stream(cuda.default)
    with cuda.recording(graph, cuda.pool(), side):
        y = x * weight
    return graph, x, y


def test_a_replay_reads_and_writes_the_tensors_of_the_recording(cuda: StandIn) -> None:
    weight = torch.full((3,), 2.0)
    graph, x, y = recorded(cuda, weight)
    assert y.tolist() == [2, 2, 2]  # on a GPU: nothing yet
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10, 10, 10]


def test_misuse(cuda: StandIn) -> None:
    weight = torch.full((3,), 2.0)
    graph, x, _ = recorded(cuda, weight)
    graph.replay()
    del weight
    gc.collect()
    with pytest.raises(Misuse, match="given back"):
        graph.replay()
    with pytest.raises(Misuse, match="not recorded"):
        cuda.graph().replay()
    with cuda.on_stream(cuda._side):
        with pytest.raises(Misuse, match="may still be reading"):
            x.mul_(2)  # nobody waited for the replay
        cuda._side.wait_stream(cuda.default)
        x.mul_(2)
    with pytest.raises(Misuse, match="may still be writing"):
        x.sum()
    with pytest.raises(RuntimeError, match="not permitted"), cuda.recording(cuda.graph(), cuda.pool(), cuda._side):
        cuda.synchronize(torch.device("cpu"))


@pytest.mark.parametrize(
    "fault",
    [
        ("stream.wait_event(self._done)", "pass"),
        ("caller.wait_stream(self._stream)", "pass"),
        ("self._stream.wait_stream(caller)", "pass"),
        ("static.copy_(given)", "recording.inputs[0].set_(given)"),
        ("self._done.record(stream)", "pass"),
        ("if self._run is not self.program.run:", "if False:"),
        ("tuple(t.clone() for t in recording.outputs)", "recording.outputs"),
        ("buffer.copy_(old)", "pass"),
    ],
    ids=lambda fault: fault[0],
)
def test_faults_in_capture_are_found(cuda: StandIn, fault: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that keeps the order, taken out of the code."""
    text = Path(cuda_graphs.__file__).read_text()
    assert text.count(fault[0]) == 1
    namespace: dict[str, Any] = {"__name__": cuda_graphs.__name__}
    exec(compile(text.replace(*fault), "<planted>", "exec", dont_inherit=True), namespace)
    monkeypatch.setattr("eager_backend.runtime.program.CapturedProgram", namespace["CapturedProgram"])
    with pytest.raises((AssertionError, RuntimeError)):
        for test in (
            test_replays_give_what_the_program_gives_at_every_size,
            test_results_and_inputs_are_the_callers_own,
            test_recording_is_no_call,
            test_new_weights_are_recorded_anew_and_old_ones_may_go,
            test_callers_on_other_streams_wait_for_each_other,
        ):
            test(cuda)


def test_cuda_is_asked_in_one_file_alone() -> None:
    root = Path(eager_backend.__file__).parent
    files = {
        p.name for p in root.rglob("*.py") if re.search(r"^[^#\"]*torch\.cuda\.\w+\(", p.read_text(), re.MULTILINE)
    }
    assert files == {"cuda.py"}
