"""Many small computations of torch at once: a thread for each, rather than all threads for one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(fn: Callable[[T], R], items: Sequence[T], at_once: int, large: bool = False) -> list[R]:
    """`fn` of each, at most so many at once, none of which takes threads of torch beyond its own.

    At the end of each loop that torch shares among its threads it waits for the last of them. On a busy machine that
    one waits for its turn, and a thousand small loops take ten times as long as on one thread. `large` ones of which
    one alone fits have all threads.
    """
    threads = torch.get_num_threads()
    workers = max(1, min(threads, at_once, len(items)))
    if threads == 1 or (large and workers == 1):
        return list(map(fn, items))
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(fn, items))
    finally:
        torch.set_num_threads(threads)
