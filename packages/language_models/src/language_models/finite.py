"""Numbers that are not finite: weights that an export would make such are refused, and a branch of a model in float16
that clamps them is written as torch.where over both of its sides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ir.errors import CaptureError, RefusedError
from ir.importer.checkpoint import stored_tensors
from ir.importer.swapping import swapped
from ir.importer.torch_api import FakeTensor
from language_models.checkpoint import Checkpoint
from language_models.weight_files import stored_file

PIECE = 1 << 20  # elements that are looked at a time


def check_finite(checkpoint: Checkpoint, source: Any) -> None:
    """Look at the weights that were converted or lie in memory; those that a file holds as they are, nobody reads yet.

    Args:
        source: what the checkpoint was opened from: a folder, or a model.

    Raises:
        RefusedError: a weight has nan or infinite numbers, or such as its element type does not reach.
    """
    before = _before(source, checkpoint.model.config)
    for name, weight in checkpoint.model.named_parameters():
        own = before.get(name)
        mapped = checkpoint.folder is not None and own is not None and own.dtype == weight.dtype
        if not mapped and weight.is_floating_point() and not _is_finite(weight):
            raise RefusedError(_said(name, weight.dtype, own))


def _before(source: Any, config: Any) -> dict[str, torch.Tensor]:
    """The weights before they were converted, by name; none where they come from files of other kinds."""
    if isinstance(source, torch.nn.Module):
        return dict(source.named_parameters())
    return stored_tensors(source) if stored_file(Path(source), config) else {}


def _is_finite(weight: torch.Tensor) -> bool:
    return all(bool(piece.isfinite().all()) for piece in weight.detach().reshape(-1).split(PIECE))


def _said(name: str, dtype: torch.dtype, own: torch.Tensor | None) -> str:
    if own is not None and not _is_finite(own):
        return f"the weight {name} has nan or infinite numbers: no token would be the model's own; check the checkpoint"
    kind, end = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
    largest = "numbers beyond that" if own is None else f"one of {own.abs().max():.6g}"
    return f"{kind} ends at {end:.6g}, and the weight {name} has {largest}: take weights='bf16', or 'f32'"


class _Branches:
    """The branches of a model that clamp what is not finite, as torch is asked for them."""

    def __init__(self) -> None:
        # by id: an answer of torch's, the tensor that it is about, and whether it is one of infinite numbers
        self._asked: dict[int, tuple[Any, Any, bool]] = {}
        self._due: tuple[Any, Any, bool] | None = None  # of the branch that was taken

    def elements(self, own: Any, infinite: bool) -> Callable[..., Any]:
        """torch.isinf, or torch.isfinite."""

        def call(tensor: Any) -> Any:
            answer = own(tensor)
            if isinstance(tensor, FakeTensor) and tensor.dtype == torch.float16:
                self._asked[id(answer)] = answer, tensor, infinite
            return answer

        return call

    def reduced(self, own: Any, infinite: bool) -> Callable[..., Any]:
        """Tensor.any, or Tensor.all."""

        def call(elements: Any, *args: Any, **kwargs: Any) -> Any:
            answer = own(elements, *args, **kwargs)
            _, tensor, asked = self._asked.get(id(elements), (None, None, None))
            if asked is infinite and not (args or kwargs):
                self._asked[id(answer)] = answer, tensor, infinite
            return answer

        return call

    def decided(self, own: Any) -> Callable[..., bool]:
        """Tensor.__bool__: the branch is always taken."""

        def call(answer: Any) -> bool:
            if id(answer) not in self._asked or answer.dim():
                return bool(own(answer))
            self.end()
            self._due = self._asked[id(answer)]
            self._asked.clear()
            return self._due[2]

        return call

    def clamped(self, own: Any) -> Callable[..., Any]:
        """torch.clamp: the branch and what there is without it, in one."""

        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            found = own(tensor, *args, **kwargs)
            if self._due is None or self._due[1] is not tensor:
                return found
            (_, _, infinite), self._due = self._due, None
            # onnxruntime computes float16 in float32 at places, where a number that is infinite here is only large
            size, end = tensor.abs(), torch.finfo(tensor.dtype).max
            taken = (size > end).any() if infinite else ~(size <= end).all()
            return torch.where(taken, found, tensor)

        return call

    def end(self) -> None:
        """Raises CaptureError if a branch was taken that clamps nothing."""
        if self._due is not None:
            raise CaptureError("the model does something else than to clamp numbers that are not finite; take f32")


@contextlib.contextmanager
def clamping() -> Iterator[None]:
    """Inside of the block `if not torch.isfinite(x).all(): x = torch.clamp(x, ...)` and `if torch.isinf(x).any():` are
    torch.where over both where a model in float16 is traced: data decides them, which no trace can follow.
    """
    found, tensor = _Branches(), torch.Tensor
    with (
        swapped(torch, "isfinite", found.elements(torch.isfinite, False)),
        swapped(torch, "isinf", found.elements(torch.isinf, True)),
        swapped(torch, "clamp", found.clamped(torch.clamp)),
        swapped(tensor, "all", found.reduced(tensor.all, False)),
        swapped(tensor, "any", found.reduced(tensor.any, True)),
        swapped(tensor, "__bool__", found.decided(tensor.__bool__)),
    ):
        yield
        found.end()
