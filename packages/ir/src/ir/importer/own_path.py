"""A model whose code asks whether it is exported, traced on the path that it takes when it runs.

`torch.compiler.is_exporting()` and `is_compiling()` let a model take another path while it is traced, which may be one
that nobody runs: transformers builds masks there that it otherwise leaves out, and that fit no layer of Informer's.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ir.importer.swapping import swapped


@contextlib.contextmanager
def as_run() -> Iterator[set[str]]:
    """Inside of the block code outside of torch is told that it is not traced.

    Yields:
        the modules of the code that has asked.
    """
    asking: set[str] = set()

    def answering(question: Callable[[], bool]) -> Callable[[], bool]:
        def answer() -> bool:
            caller: Any = getattr(inspect.currentframe(), "f_back", None)
            module = str(caller.f_globals.get("__name__", ""))
            if not question() or module.partition(".")[0] == "torch":
                return question()
            asking.add(module)
            return False

        return answer

    with contextlib.ExitStack() as stack:
        for name in ("is_exporting", "is_compiling"):
            stack.enter_context(swapped(torch.compiler, name, answering(getattr(torch.compiler, name))))
        yield asking
