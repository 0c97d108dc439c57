"""Weights by reference: the model's own tensors, read only when an artifact is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ir.importer.schema import DTYPES, LAYOUTS
from ir.types import TensorType


@dataclass(frozen=True, eq=False)
class TorchWeight:
    """A parameter, buffer or constant; `name` is its qualified name in the model ("layer1.0.conv1.weight")."""

    name: str
    tensor: torch.Tensor

    @property
    def type(self) -> TensorType:
        return tensor_type(self.tensor)

    def over(self, tensor: torch.Tensor) -> TorchWeight:
        """The weight with another tensor."""
        return TorchWeight(self.name, tensor)

    def numpy(self) -> Any:
        """The data as a numpy array that shares memory with the tensor where it lies contiguous on the CPU.

        Of a sparse tensor all elements, zeros included; numpy has no complex32, which is copied as complex64.
        """
        t = self.tensor.detach()
        t = (t if t.layout is torch.strided else t.to_dense()).resolve_conj().resolve_neg().cpu().contiguous()
        if t.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            import ml_dtypes

            carrier = torch.int16 if t.dtype == torch.bfloat16 else torch.uint8
            return t.view(carrier).numpy().view(getattr(ml_dtypes, str(t.dtype).removeprefix("torch.")))
        return (t.to(torch.complex64) if t.dtype == torch.complex32 else t).numpy()


def has_only_truths(tensor: torch.Tensor) -> bool:
    """False of truth values with a byte in them other than 0 and 1, of which each runtime makes something else."""
    if tensor.dtype is not torch.bool or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return True
    return int(tensor.detach().view(torch.uint8).max()) <= 1


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """The type of a real tensor."""
    return TensorType(DTYPES[tensor.dtype], tuple(tensor.shape), LAYOUTS.get(tensor.layout, "strided"))
