"""`torch._assert` of a tensor: torch.export asks for its number, where the program can look at it when it runs."""

from __future__ import annotations

from typing import Any

import torch

from ir.importer.swapping import swapped
from ir.importer.torch_api import ASSERT, assert_of_tensor


def kept() -> Any:
    """A block in which such a call becomes an operator of the graph, as an `assert` of a tensor does."""
    now: Any = getattr(torch, ASSERT)

    def later(condition: Any, message: str) -> None:
        if isinstance(condition, torch.Tensor) and condition.numel() == 1:
            assert_of_tensor(condition, message)
        else:
            now(condition, message)

    return swapped(torch, ASSERT, later)
