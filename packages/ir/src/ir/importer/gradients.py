"""Models that differentiate by autograd in their forward: torch.export has no graph of that, and torch.func has."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.fixed_sizes import place
from ir.importer.refusals import first_line, is_own
from ir.importer.swapping import swapped

_TOLD = """torch.export refused the model: it differentiates by autograd, which torch.export does not trace ({})
  at {}
  write torch.func.grad(f)(x), vjp, jacrev or jacfwd of a function f of the tensor x in its place, as
    forces = -torch.func.grad(lambda x: self.energy(x).sum())(positions)"""


@contextlib.contextmanager
def told_of() -> Iterator[None]:
    """In place of an error out of the block where the model called torch.autograd.grad or backward.

    torch's own words for it are about tensors without data among the constants, and name no line.

    Raises:
        CaptureError: the block raised an error, and the model had called one of the two.
    """
    called: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in ("grad", "backward"):
            stack.enter_context(swapped(torch.autograd, name, _noting(getattr(torch.autograd, name), called)))
        try:
            yield
        except Exception as error:
            if called:
                raise CaptureError(_TOLD.format(first_line(error).partition(". ")[0], called[0])) from error
            raise


def _noting(call: Callable[..., Any], called: list[str]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        stack = traceback.extract_stack()
        at = max((i for i, frame in enumerate(stack) if is_own(frame)), default=0)
        if not any(Path(f.filename).parent.name == "_functorch" for f in stack[at:]):  # whose transforms call it, too
            called.append(place(stack[at]))
        return call(*args, **kwargs)

    return noted
