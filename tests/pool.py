"""What the sweeps share: items for workers, on threads of this process or as actors of Ray on any number of machines.

A worker is an object with `ask(item)` and `close()`; those of the sweeps run each item in a child process of their own,
which may crash or hang. Ray wants the repository and its environment at the same place on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def pool(
    make: Callable[[], Any], items: Iterable[Any], jobs: int = 1, ray: str | None = None
) -> Iterator[tuple[Any, Any]]:
    """Each item and what a worker answered, as they come.

    Items are drawn as workers become free, in the caller's thread, so they may depend on the answers so far.

    Args:
        make: makes a worker; for Ray one that pickle takes.
        items: what the workers are asked.
        jobs: how many workers there are here.
        ray: the address of a cluster (host:port, ray://host:port, auto; local starts one here), which has a worker for
            each of its CPUs; an actor that dies starts anew and is asked again, twice at most for an item.
    """
    workers = _Threads(make, jobs) if ray is None else _Actors(make, ray)
    left, running = iter(items), {}
    try:
        while True:
            while workers.free and (item := next(left, workers)) is not workers:
                worker = workers.free.pop()
                running[workers.start(worker, item)] = worker, item
            if not running:
                return
            done = workers.first(list(running))
            worker, item = running.pop(done)
            answer = workers.answer(done)
            workers.free.append(worker)
            yield item, answer
    finally:
        workers.close()


class _Threads:
    def __init__(self, make: Callable[[], Any], jobs: int) -> None:
        self.threads = ThreadPoolExecutor(jobs)
        self.all = [make() for _ in range(jobs)]
        self.free = list(self.all)

    def start(self, worker: Any, item: Any) -> Future[Any]:
        return self.threads.submit(worker.ask, item)

    def first(self, running: list[Future[Any]]) -> Future[Any]:
        return next(iter(wait(running, return_when=FIRST_COMPLETED).done))

    def answer(self, done: Future[Any]) -> Any:
        return done.result()

    def close(self) -> None:
        for worker in self.all:
            worker.close()  # whoever still waits for one learns that it ended
        self.threads.shutdown(cancel_futures=True)


class _Worker:
    """The actor."""

    def __init__(self, make: Callable[[], Any]) -> None:
        os.chdir(ROOT)
        self.worker = make()

    def ask(self, item: Any) -> Any:
        return self.worker.ask(item)


class _Actors:
    def __init__(self, make: Callable[[], Any], address: str) -> None:
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        self.ray, self.own = ray, not ray.is_initialized()
        if self.own:
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": path}}, logging_level="ERROR")
        actor = ray.remote(_Worker).options(num_cpus=1, max_restarts=-1, max_task_retries=2)
        self.all = [actor.remote(make) for _ in range(int(ray.cluster_resources()["CPU"]))]
        self.free = list(self.all)

    def start(self, worker: Any, item: Any) -> Any:
        return worker.ask.remote(item)

    def first(self, running: list[Any]) -> Any:
        return self.ray.wait(running)[0][0]

    def answer(self, done: Any) -> Any:
        return self.ray.get(done)

    def close(self) -> None:
        for worker in self.all:
            self.ray.kill(worker)  # whose child processes end with their pipes
        if self.own:
            self.ray.shutdown()
