"""Python numbers that `forward` counts on, as `self.n += 1`: torch.export puts them down as they are in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ir.errors import warn


@contextlib.contextmanager
def told_of(model: torch.nn.Module) -> Iterator[None]:
    """Inside of the block `forward` is looked at for numbers of the model's modules that it changes.

    Warns:
        UserWarning: there are any, after the block.
    """
    before = _numbers(model)
    changed: dict[str, None] = {}

    def look(*_: Any) -> None:
        after = _numbers(model)
        changed.update((f"{k} from {n} to {after[k]}", None) for k, n in before.items() if after.get(k, n) != n)

    with model.register_forward_hook(look) if before else contextlib.nullcontext():
        yield
    if changed:
        warn(
            f"forward changes {', '.join(changed)}, Python numbers: the program has what this one call read of them in "
            "every call; a buffer is state of the program"
        )


def _numbers(model: torch.nn.Module) -> dict[str, Any]:
    """The Python numbers among the attributes of all modules, by path."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) in (int, float)
    }
