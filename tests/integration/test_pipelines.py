"""Llama, bert and a U-Net in two and four stages: in one process, and over torch.distributed."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import torch.multiprocessing as mp

import ir
from ir.runtime import pipeline as pipelines
from ir.runtime.pipeline import Pipeline
from tests.integration.pipelines import LIMIT, MODELS, captured, given, process
from tests.zoo.decoding import cache_argument

pytest.importorskip("transformers")
TARGETS = ("onnx", "nnef", "eager")


@pytest.fixture(scope="module")
def graphs():
    return {name: captured(name) for name in MODELS}


def folder_of(tmp_path, graph, stages, target):
    pipelines.export(ir.split(graph, stages=stages), tmp_path / "stages", target, verify=True)
    return tmp_path / "stages"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_whole(graphs, tmp_path, name, stages, target):
    graph, inputs, sizes = graphs[name]
    folder = folder_of(tmp_path, graph, stages, target)
    whole = ir.export(graph, target=target)
    pipeline = Pipeline.of(folder)
    for size in sizes:
        torch.manual_seed(1)
        args = given(graph, *inputs(*size))
        wanted = dict(zip(graph.output_names, whole.runner(*args.values()), strict=False))
        found = pipeline(args)
        assert list(found) == list(wanted)
        for n in wanted:
            torch.testing.assert_close(found[n], wanted[n], rtol=1e-4, atol=1e-5)


def test_caches_lie_with_their_layers(graphs):
    plan = ir.split(graphs["llama"][0], at=["model.layers.1", "model.layers.2", "model.layers.3"]).plan
    cache = cache_argument()
    for layer, part in enumerate(plan.parts):
        held = {n.removeprefix(f"{cache}.").split(".")[0] for n in part.inputs if n.startswith(cache)}
        assert held == {str(layer)}
        assert {f"present.{layer}.key", f"present.{layer}.value"} <= {*part.outputs}


def test_a_target_for_each_stage(graphs, tmp_path):
    graph, inputs, sizes = graphs["bert"]
    pipeline = pipelines.export(ir.split(graph, stages=3), tmp_path, ["eager", "onnx", "nnef"], verify=True)
    args = given(graph, *inputs(*sizes[1]))
    wanted = ir.export(graph, target="eager").runner(*args.values())
    for tensor, w in zip(pipeline(args).values(), wanted, strict=True):
        torch.testing.assert_close(tensor, w, rtol=1e-4, atol=1e-5)
    pipelines.export(ir.split(graph, stages=3), tmp_path, "onnx")  # another target takes the place of the first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipeline.json", "stage0.onnx", "stage1.onnx", "stage2.onnx"]


USUAL = {("llama", 2, "nnef")}
OVER = [
    pytest.param(*way, marks=() if way in USUAL else pytest.mark.slow)
    for way in itertools.product(MODELS, (2, 4), TARGETS)
]


@pytest.mark.parametrize(("name", "stages", "target"), OVER)
def test_over_torch_distributed(graphs, tmp_path, name, stages, target):
    graph, inputs, sizes = graphs[name]
    folder = folder_of(tmp_path, graph, stages, target)
    calls = [given(graph, *inputs(*size)) for size in sizes * 2]
    torch.save(calls, tmp_path / "calls.pt")
    arguments = (stages, str(tmp_path / "store"), str(folder), str(tmp_path / "calls.pt"), None)
    mp.spawn(process, arguments, nprocs=stages)
    pipeline = Pipeline.of(folder)
    for found, call in zip(torch.load(folder / "results.pt"), calls, strict=True):
        for name, wanted in pipeline(call).items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dies", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_that_dies_ends_all_in_time(graphs, tmp_path, dies):
    graph, inputs, sizes = graphs["bert"]
    folder = folder_of(tmp_path, graph, 2, "onnx")
    torch.save([given(graph, *inputs(*sizes[0]))] * 40, tmp_path / "calls.pt")
    context = mp.get_context("spawn")
    arguments = (2, str(tmp_path / "store"), str(folder), str(tmp_path / "calls.pt"), dies)
    processes = [context.Process(target=process, args=(rank, *arguments)) for rank in range(2)]
    for p in processes:
        p.start()
    processes[dies].join(120)
    start = time.monotonic()
    processes[1 - dies].join(LIMIT + 20)
    assert [p.exitcode for p in processes] == [3, 1] if dies == 0 else [1, 3]
    assert time.monotonic() - start < LIMIT + 15


def test_refusals(graphs, tmp_path):
    with pytest.raises(ir.ExportError, match=r"holds no pipeline\.json"):
        Pipeline.of(tmp_path)
    split = ir.split(graphs["bert"][0], stages=2)
    with pytest.raises(ir.ExportError, match="3 targets are given for 2 stages"):
        pipelines.export(split, tmp_path, ["onnx"] * 3)
    pipelines.export(split, tmp_path, "onnx")
    (tmp_path / "stage1.onnx").unlink()
    with pytest.raises(ir.ExportError, match="the file of stage 1 is missing"):
        Pipeline.of(tmp_path)
