"""Ray Data: a pool of actors, each with one session."""

from __future__ import annotations

from typing import Any

from ir.runtime.runner import FileRunner


class Worker:
    """The actor: Ray makes one for each worker, and it keeps the process's session open between batches."""

    def __init__(self, runner: FileRunner) -> None:
        self.runner = runner

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch's columns, and those of the results."""
        return batch | self.runner(batch)


def map_batches(
    dataset: Any, runner: FileRunner, *, workers: int = 1, batch_size: int = 1024, threads: int = 1, **options: Any
) -> Any:
    """A dataset with the columns of the results beside its own.

    Ray sends the batches of an actor that dies to another, and holds back what makes them while the actors are busy,
    so that a dataset larger than memory flows through.

    Args:
        dataset: a ray.data.Dataset with a column for each input of the artifact.
        runner: what `ir.runner` gave; its path is one that the workers see, or it was made with ship=True.
        workers: the number of actors.
        batch_size: rows that Ray hands over at a time; the runner splits them further by a batch_size of its own.
        threads: the CPUs that an actor takes, and the threads that its session computes with.
        **options: Ray's own, for `Dataset.map_batches`.

    Returns:
        A ray.data.Dataset; as always with Ray, nothing runs until it is consumed.

    Example:
        >>> images = ray.data.read_parquet("images")  # doctest: +SKIP
        >>> map_batches(images, ir.runner("model.onnx"), workers=4).write_parquet("results")  # doctest: +SKIP
    """
    import ray

    return dataset.map_batches(
        Worker,
        fn_constructor_args=(runner,),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=threads,
        batch_size=batch_size,
        batch_format="numpy",
        **options,
    )
