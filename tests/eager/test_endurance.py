"""One program called by many threads and very often: identical results, and neither memory nor time grows."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ir
from eager_backend import Eager

THREADS = 8
GROWTH = 4 * 2**20  # bytes that the process may grow by: one leaked 128-byte object a call is 1.2 MB in 10,000


class Net(nn.Module):
    """Convolutions, linear layers, dynamic sizes and a branch; the result tells which branch was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.SiLU()
        )
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(image)
        rows = features.flatten(2).mean(-1)
        scores = self.head(rows) + rows.new_ones(2 * image.shape[0], 4)[: image.shape[0]]
        chosen = torch.cond(image.sum() > 0, lambda s: s.softmax(-1), lambda s: s.exp() + s.shape[0], (scores,))
        return chosen, features.view(image.shape[0], -1)


def program(optimize: bool) -> ir.Exported:
    torch.manual_seed(0)
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    return ir.export(Net().eval(), (torch.randn(2, 3, 12, 12),), target=Eager(optimize=optimize), dynamic_shapes=shapes)


def images() -> list[Tensor]:
    return [(-1) ** i * torch.rand(i % 3 + 1, 3, 10 + i, 13 - i % 4) for i in range(THREADS)]


def threads(optimize: bool, calls: int) -> None:
    """Every thread calls with its own image, in its turn with its neighbours'."""
    called, given = program(optimize).artifact, images()
    expected = [called(x) for x in given]
    torch_own = program(False).graph.context.program.module(check_guards=False)
    with torch.no_grad():
        for x, e in zip(given, expected, strict=True):
            torch.testing.assert_close(e, torch_own(x), rtol=1e-4, atol=1e-4)

    def work(thread: int) -> int:
        equal = 0
        for i in range(calls):
            which = (thread + i) % THREADS
            results = called(given[which])
            equal += all(torch.equal(r, e) for r, e in zip(results, expected[which], strict=True))
        return equal

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [calls] * THREADS


def resident() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def endure(optimize: bool, calls: int) -> None:
    """Calls in a row, of changing sizes; the first tenth warms caches up."""
    called, given = program(optimize).artifact, images()
    tenth = calls // 10
    seconds: list[float] = []
    memory: list[int] = []
    for _ in range(10):
        start = time.perf_counter()
        for i in range(tenth):
            called(given[i % THREADS])
        seconds.append(time.perf_counter() - start)
        gc.collect()
        memory.append(resident())
    micro = [round(s / tenth * 1e6) for s in seconds]
    print(f"us a call by tenths: {micro}; memory after each, MiB: {[m // 2**20 for m in memory]}")
    assert memory[-1] - memory[0] < GROWTH


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm")


@pytest.mark.parametrize("optimize", [False, True])
def test_threads(optimize: bool) -> None:
    threads(optimize, 50)


@needs_proc
def test_memory() -> None:
    endure(True, 600)


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [False, True])
def test_8_threads_1000_calls_each(optimize: bool) -> None:
    threads(optimize, 1000)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("optimize", [False, True])
def test_10000_calls_in_a_row(optimize: bool) -> None:
    endure(optimize, 10000)


def test_a_clone_for_each_thread_that_writes() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.total += x
            return self.total * 1

    counter = ir.export(Counter(), (torch.ones(()),), target="eager").artifact

    def work(_: int) -> float:
        own = counter.clone()
        for _ in range(200):
            (result, *_) = own(torch.ones(()))
        return float(result)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [200.0] * THREADS
