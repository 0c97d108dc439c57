"""The answer no to a model that asks whether it is being exported.

With `torch.compiler.is_exporting()` or `is_compiling()` a model may take another path while it is traced than when it
runs, and that path may fail: transformers builds attention masks there which it leaves out at run time, and whose
sizes do not fit Informer's layers.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ir.importer.swapping import swapped


@contextlib.contextmanager
def not_exporting() -> Iterator[set[str]]:
    """Inside of the block code outside of torch is told that it is neither exported nor compiled.

    Yields:
        the modules of the code that has asked.
    """
    asking: set[str] = set()

    def answering(question: Callable[[], bool]) -> Callable[[], bool]:
        def answer() -> bool:
            caller: Any = getattr(inspect.currentframe(), "f_back", None)
            module = str(caller.f_globals.get("__name__", ""))
            truth = question()
            if not truth or module.partition(".")[0] == "torch":
                return truth
            asking.add(module)
            return False

        return answer

    with contextlib.ExitStack() as stack:
        for name in ("is_exporting", "is_compiling"):
            stack.enter_context(swapped(torch.compiler, name, answering(getattr(torch.compiler, name))))
        yield asking
