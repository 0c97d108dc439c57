"""Ray Data: a pool of actors, each with one session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ir.runtime.runner import FileRunner


class Worker:
    """The actor: Ray makes one for each worker, and it keeps the process's session open between batches."""

    def __init__(self, runner: FileRunner, keep: Sequence[str] | None = None) -> None:
        self.runner, self.keep = runner, keep

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch's columns, and those of the results."""
        kept = batch if self.keep is None else {name: batch[name] for name in self.keep}
        made: dict[str, Any] = kept | self.runner(batch)
        return made


def map_batches(
    dataset: Any,
    runner: FileRunner,
    *,
    workers: int = 1,
    batch_size: int = 1024,
    threads: int = 1,
    keep: Sequence[str] | None = None,
    **options: Any,
) -> Any:
    """A dataset with the columns of the results beside its own.

    Ray sends the batches of an actor that dies to another, and holds back what makes them while the actors are busy,
    so that a dataset larger than memory flows through. It gives an actor whole blocks, of up to 128 MB by default (a
    million short texts, all for one actor), so the blocks are cut to batches before.

    Args:
        dataset: a ray.data.Dataset with a column for each input of the artifact.
        runner: what `ir.runner` gave; its path is one that the workers see, or it was made with ship=True.
        workers: the number of actors.
        batch_size: rows that Ray hands over at a time; the runner splits them further by a batch_size of its own.
        threads: the CPUs that an actor takes, and the threads that its session computes with. Where the actors would
            take all CPUs of the cluster they are said to take a little less, or nothing could read for them.
        keep: the columns that stay beside the results, all by default. Each one left out is not copied back to Ray's
            object store: images are most of what a worker would pass on.
        **options: Ray's own, for `Dataset.map_batches`.

    Returns:
        A ray.data.Dataset; as always with Ray, nothing runs until it is consumed.

    Examples:
        >>> images = ray.data.read_parquet("images")  # doctest: +SKIP
        >>> map_batches(images, ir.runner("model.onnx"), workers=4).write_parquet("results")  # doctest: +SKIP
    """
    import ray

    given = {"compute": ray.data.ActorPoolStrategy(size=workers), "num_cpus": _cpus(workers, threads)} | options
    return dataset.repartition(target_num_rows_per_block=batch_size).map_batches(
        Worker,
        fn_constructor_args=(runner if runner.threads else replace(runner, threads=threads), keep),
        batch_size=batch_size,
        batch_format="numpy",
        **given,
    )


def _cpus(workers: int, threads: int) -> float:
    """The CPUs of an actor, by which one of the cluster's is left to the tasks that read and write."""
    import ray

    total = ray.cluster_resources().get("CPU", 0.0)
    if not 0 <= total - workers * threads < 1:  # more than there are: the cluster is to grow, or Ray says so
        return threads
    share = (total - 1) / workers
    return int(share) if share >= 1 else max(0.001, int(share * 1000) / 1000)  # Ray has no parts of several CPUs
