"""The stages of a model as Ray actors."""

from __future__ import annotations

import pytest
import torch

import ir
from ir.runtime import pipeline as pipelines
from tests.integration.pipelines import MODELS, captured, given

ray = pytest.importorskip("ray")
pytest.importorskip("transformers")
adapter = pytest.importorskip("batch_inference.ray_pipeline")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("target", ["onnx", "nnef", "eager"])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_pipeline_in_one_process(tmp_path, name, stages, target):
    graph, inputs, sizes = captured(name)
    pipeline = pipelines.export(ir.split(graph, stages=stages), tmp_path, target)
    actors = adapter.RayPipeline(pipeline)
    calls = [given(graph, *inputs(*size)) for size in sizes * 2]
    begun = [actors.start(call) for call in calls]  # all are on their way before the first is asked for
    for call, references in zip(calls, begun, strict=True):
        wanted = pipeline(call)
        assert list(references) == list(wanted)
        for found, tensor in zip(ray.get(list(references.values())), wanted.values(), strict=True):
            torch.testing.assert_close(found, tensor, rtol=1e-5, atol=1e-6)
    actors.close()


def test_an_actor_that_dies_is_an_error(tmp_path):
    graph, inputs, sizes = captured("bert")
    actors = adapter.RayPipeline(pipelines.export(ir.split(graph, stages=2), tmp_path, "onnx"))
    actors(given(graph, *inputs(*sizes[0])))
    ray.kill(actors.actors[1])
    with pytest.raises(ray.exceptions.RayError):
        actors(given(graph, *inputs(*sizes[0])))
    actors.close()
