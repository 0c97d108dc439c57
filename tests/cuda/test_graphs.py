"""What a program recorded as a CUDA graph keeps: state, random numbers, streams, threads, weights, memory, refusals."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir
from eager_backend import Eager
from tests.cuda.common import GPU, assert_equal


class Counter(nn.Module):
    """Adds what it is given to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.sum(0)
        return x * self.total


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 14 * 14, 32), nn.GELU("tanh"), nn.Linear(32, 5), nn.Softmax(-1),
    ).eval()  # fmt: skip


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))


def exported(model: Any, *args: Tensor, dynamic: Any = None, **options: Any) -> Any:
    return ir.export(model, args, target=Eager(device=GPU, **options), dynamic_shapes=dynamic)


BATCH = ({0: "batch"},)


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_a_network_at_several_sizes(dtype: str | None, optimize: bool) -> None:
    model = network()
    program = exported(model, image(), dynamic=BATCH, dtype=dtype, optimize=optimize)
    given = image().to(GPU)
    captured = program.artifact.capture(given)
    reference = network().to(GPU)
    for batch in (2, 5, 1, 2, 5):
        given = image(batch).to(GPU)
        (actual,) = captured(given)
        with torch.no_grad():
            expected = reference(given)
        bound = {None: 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
        torch.testing.assert_close(actual.float(), expected, rtol=bound, atol=bound)
    assert next(model.parameters()).device.type == "cpu"  # the model is left where it was


def test_results_are_the_callers_own() -> None:
    captured = exported(network(), image()).artifact.capture(image().to(GPU))
    (first,) = captured(image().to(GPU))
    kept = first.clone()
    captured(image(2).to(GPU) * 3)
    assert torch.equal(first, kept)


def test_inputs_may_lie_on_the_cpu() -> None:
    program = exported(network(), image())
    captured = program.artifact.capture(image().to(GPU))
    assert_equal(captured(image()), captured(image().to(GPU)))


def test_state_is_written_by_replays_and_not_by_recording() -> None:
    program, model = exported(Counter(), torch.ones(2, 4)), Counter()
    captured = program.artifact.capture(torch.ones(2, 4, device=GPU))  # recorded, and called once
    expected = model(torch.ones(2, 4))
    for k in range(2, 5):
        x = torch.full((2, 4), float(k))
        actual, _ = captured(x.to(GPU))
        expected = model(x)
        torch.testing.assert_close(actual.cpu(), expected)
    torch.testing.assert_close(program.artifact.state_dict()["total"].cpu(), model.total)


def test_random_numbers_are_new_in_every_replay_and_follow_the_seed() -> None:
    program = exported(lambda x: torch.rand_like(x) + x, torch.zeros(1000))
    zeros = torch.zeros(1000, device=GPU)
    captured = program.artifact.capture(zeros)
    (first,), (second,) = captured(zeros), captured(zeros)
    assert not torch.equal(first, second)
    assert 0.4 < float(first.mean()) < 0.6
    torch.manual_seed(5)
    (again,) = captured(zeros)
    torch.manual_seed(5)
    (same,) = captured(zeros)
    assert torch.equal(again, same)


@pytest.mark.parametrize("capture", [False, True])
def test_threads_and_streams(capture: bool) -> None:
    program = exported(network(), image(), dynamic=BATCH)
    call: Callable[..., Any] = program.artifact.capture(image().to(GPU)) if capture else program.artifact
    expected = {b: program.artifact(image(b).to(GPU))[0] for b in (1, 2, 3)}
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(50):
                batch = 1 + (number + turn) % 3
                (actual,) = call(image(batch).to(GPU))
                if not torch.allclose(actual, expected[batch], rtol=1e-4, atol=1e-5):
                    wrong.append(f"thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_new_weights_are_recorded_anew() -> None:
    program, other = exported(network(), image()), network()
    captured = program.artifact.capture(image().to(GPU))
    for p in other.parameters():
        p.data.mul_(0.5)
    program.artifact.load_state_dict(other.state_dict())
    with torch.no_grad():
        expected = other.to(GPU)(image().to(GPU))
    torch.testing.assert_close(captured(image().to(GPU))[0], expected, rtol=1e-4, atol=1e-5)


def test_recordings_give_their_memory_back() -> None:
    program = exported(network(), image(), dynamic=BATCH)
    program.artifact.capture(image().to(GPU))  # libraries keep a workspace for the stream of captures
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    captured = program.artifact.capture(image(8).to(GPU))
    captured(image(64).to(GPU))
    del captured
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2**20


class ReadsNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sum().item()


class WritesWhere(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.index_put((x > 0,), y)


def test_a_failed_capture_names_the_step() -> None:
    program, given = exported(WritesWhere(), torch.ones(3), torch.tensor(2.0)), torch.ones(3, device=GPU)
    with pytest.raises(ir.ExportError, match=r"in the step index_put = .*test_graphs\.py:\d+"):
        program.artifact.capture(given, given[0])
    assert torch.equal(program(given, given[0]), given)  # the stream, and the program, are usable after it


def test_what_waits_is_refused_and_runs_as_a_program() -> None:
    program = exported(ReadsNumbers(), torch.ones(3))
    given = torch.ones(3, device=GPU)
    with pytest.raises(ir.ExportError, match="cannot be captured as a CUDA graph: it reads a number"):
        program.artifact.capture(given)
    torch.testing.assert_close(program(given), given * 3)


def test_profile_trace_and_check() -> None:
    program = exported(network(), image())
    given = image().to(GPU)
    profile = program.artifact.profile(given)
    assert len(str(profile).splitlines()) > 5
    traced = program.artifact.trace(given)
    assert all(t.device.type == "cuda" for t in traced.values() if isinstance(t, Tensor))


def test_verify_on_the_gpu() -> None:
    program = exported(network(), image(), dynamic=BATCH)
    assert program.verify().ok


def test_autotune() -> None:
    program = exported(network(), image(), autotune=True)
    with torch.no_grad():
        torch.testing.assert_close(program(image().to(GPU)), network().to(GPU)(image().to(GPU)), rtol=1e-4, atol=1e-5)


def test_a_saved_program_comes_back_on_the_gpu(tmp_path: Any) -> None:
    program = exported(network(), image(), dynamic=BATCH)
    path = program.save(tmp_path / "network.pt2")
    again = ir.export(path or tmp_path / "network.pt2", target=Eager(device=GPU))
    assert_equal(again(image(3).to(GPU)), program(image(3).to(GPU)))
