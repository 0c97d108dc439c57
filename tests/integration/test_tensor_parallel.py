"""Models over several processes of torch.distributed (gloo): collectives, weights that are DTensors, a dead process."""

from __future__ import annotations

import time

import pytest
import torch.distributed
import torch.multiprocessing as mp

from tests.integration import processes

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without it")


def run(work, size, tmp_path, name=""):
    context = mp.get_context("spawn")
    arguments = (size, str(tmp_path / "store"), name)
    found = [context.Process(target=processes.WORK[work], args=(rank, *arguments)) for rank in range(size)]
    for p in found:
        p.start()
    return found


SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["mlp", pytest.param("llama", marks=pytest.mark.slow)])
def test_a_sharded_model_is_equal_to_the_whole(tmp_path, name, size):
    found = run("sharded", size, tmp_path, name)
    for p in found:
        p.join(300)
    assert [p.exitcode for p in found] == [0] * size


@pytest.mark.parametrize("size", SIZES)
def test_collectives(tmp_path, size):
    found = run("collectives", size, tmp_path)
    for p in found:
        p.join(300)
    assert [p.exitcode for p in found] == [0] * size


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_process_that_dies_ends_all_in_time(tmp_path, size):
    found = run("dying", size, tmp_path, "mlp")
    found[-1].join(300)
    start = time.monotonic()
    for p in found:
        p.join(max(0.0, start + processes.LIMIT + 20 - time.monotonic()))
    codes = [p.exitcode for p in found]
    assert codes[-1] == 3 and not {0, None} & {*codes}  # gloo ends some in their exit handlers
    assert time.monotonic() - start < processes.LIMIT + 15


def test_every_operator_of_torch_that_takes_a_group_is_a_collective():
    import torch.distributed._functional_collectives
    import torch.distributed.tensor

    from ir.passes.collectives import _NAMESPACES

    taking = [
        s.name
        for s in torch._C._jit_get_all_schemas()
        if any(a.name == "group_name" or "ProcessGroup" in str(a.type) for a in s.arguments)
    ]
    assert len(taking) > 30
    assert [n for n in taking if not n.startswith(_NAMESPACES)] == []
