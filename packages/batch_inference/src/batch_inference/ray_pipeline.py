"""A pipeline of stages as Ray actors, of any target: tensors go from actor to actor through Ray's object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ir.runtime.pipeline import Pipeline


class _Stage:
    def __init__(self, pipeline: Pipeline, place: int) -> None:
        self.runner = pipeline.stage(place)
        self.count = len(pipeline.plan.parts[place].outputs)

    def run(self, *tensors: Any) -> Any:
        made = self.runner(*tensors)
        return tuple(made[: self.count]) if self.count != 1 else made[0]


class RayPipeline:
    """An actor for each stage; calls go in one after another, and the stages work on several of them at a time.

    Args:
        pipeline: the stages' files, on a path that the actors see.
        threads: the CPUs of an actor, and the threads of its session.
        options: Ray's own for each actor: {"num_gpus": 1}, or {"resources": {"node0": 1}} one by one as a sequence.

    Examples:
        >>> pipeline = RayPipeline(Pipeline.of("folder"))  # doctest: +SKIP
        >>> [pipeline.start(batch) for batch in batches]  # doctest: +SKIP
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        threads: int = 1,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        import ray

        self.plan = pipeline.plan
        count = len(self.plan.parts)
        each = [options or {}] * count if not isinstance(options, Sequence) else options
        actor = ray.remote(_Stage)
        self.actors = [actor.options(num_cpus=threads, **each[k]).remote(pipeline, k) for k in range(count)]

    def start(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a call: references to the results by name, for ray.get."""
        import ray

        held: dict[str, Any] = {n: ray.put(t) for n, t in inputs.items()}
        for part, actor in zip(self.plan.parts, self.actors, strict=True):
            made = actor.run.options(num_returns=len(part.outputs)).remote(*(held[n] for n in part.inputs))
            held.update(zip(part.outputs, made if len(part.outputs) != 1 else [made], strict=True))
        return dict(zip(self.plan.names, (held[n] for n in self.plan.results), strict=True))

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One call, to its end.

        Raises:
            ray.exceptions.RayError: an actor died, or its stage failed.
        """
        import ray

        found = self.start(inputs)
        return dict(zip(found, ray.get(list(found.values())), strict=True))

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self.actors:
            ray.kill(actor)
