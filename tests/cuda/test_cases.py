"""Every case of the table on a GPU: bit for bit torch's own module there, and to rounding with every pass.

Where the program can be a CUDA graph, the replayed graph gives what the program gives, at two sizes, twice each. What
torch itself does not export or run there is skipped, with its words.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ir
from eager_backend import Eager
from eager_backend.runtime.cuda_graphs import obstacles
from tests.cases import ALL, OTHER, TRACED, Case
from tests.cuda.common import GPU, Reference, assert_equal, there

# a batch norm that trains writes its statistics: torch's module calls cuDNN, the graph has the functional kernel
OTHER_KERNEL = {"norm/batch_norm2d_train", "norm/batch_norm1d_train_momentum"}


def seeded(call: Any, args: tuple[Tensor, ...]) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return call(*args)


def captured(case: Case) -> ir.Graph:
    try:
        return ir.capture(case.module(), case.args(TRACED), dynamic_shapes=case.dynamic_shapes)
    except ir.CaptureError as error:
        pytest.skip(f"torch {torch.__version__} does not export it: {error}")


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    graph = captured(case)
    reference = Reference(graph)
    exact, optimised = (ir.export(graph, target=Eager(device=GPU, optimize=o)) for o in (False, True))
    for sizes in (TRACED, OTHER) if case.dynamic_shapes else (TRACED, TRACED):  # twice: mutated buffers persist
        args = there(case.args(sizes))
        try:
            expected = reference(*args)
        except (RuntimeError, NotImplementedError, IndexError) as error:
            pytest.skip(f"torch's own module does not run there: {error}")
        for program in (exact, optimised):
            own = there(case.args(sizes))
            bits = program is exact and case.name not in OTHER_KERNEL and not reference.on_cpu
            assert_equal(seeded(program, own), expected, exact=bits)
            assert_equal(own, args, exact=bits)  # mutated inputs, too


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_case_as_a_graph(case: Case) -> None:
    graph = captured(case)
    program = ir.export(graph, target=Eager(device=GPU)).artifact
    if program.constants.written or graph.random or graph.updates:
        pytest.skip("state and random numbers have tests of their own")
    if list(obstacles(program)):
        pytest.skip("not a CUDA graph, as the program says itself")
    first = graph.structure.flatten(there(case.args(TRACED)), {})
    try:
        program(*first)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        pytest.skip(f"torch has no kernel: {error}")
    try:
        recorded = program.capture(*first)
    except ir.ExportError as error:
        assert "in the step" in str(error)
        pytest.skip(str(error))
    for sizes in (TRACED, OTHER, TRACED) if case.dynamic_shapes else (TRACED, TRACED):
        flat = graph.structure.flatten(there(case.args(sizes)), {})
        assert_equal(recorded(*flat), program(*flat))
