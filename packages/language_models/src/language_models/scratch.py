"""Tensors that lie in a temporary file and not in memory: what is made of weights, until it is written."""

from __future__ import annotations

import json
import math
import mmap
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

PIECE = 1 << 16  # elements that are computed at a time: they stay in the cache, and leave no holes in the heap
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.bool: "BOOL",
          torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"}  # fmt: skip


class Scratch:
    """One file of holes, mapped, which gives out tensors until it is full; it is gone once nothing refers to them.

    Args:
        room: bytes for all tensors; each begins on a page of its own. Holes take no room on the disk.
    """

    def __init__(self, room: int) -> None:
        self._end = 0
        with tempfile.TemporaryFile() as file:
            file.truncate(max(room, mmap.PAGESIZE))
            self._held = mmap.mmap(file.fileno(), 0)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor to write to."""
        count = math.prod(shape)
        made = torch.frombuffer(self._held, dtype=dtype, count=count, offset=self._end)
        self._end += paged(count * dtype.itemsize)
        return made.view(*shape)


def paged(size: int) -> int:
    """The bytes that a tensor of this size takes in a scratch file."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def by_rows(tensor: torch.Tensor, least: int = 1) -> Iterator[slice]:
    """Slices of rows, multiples of `least`, so that a piece has few elements however large the tensor is.

    torch has one thread meanwhile: several would wait for each other at each of the small steps.
    """
    step = max(1, PIECE // max(1, tensor[0].numel() * least)) * least if len(tensor) else 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from (slice(at, at + step) for at in range(0, len(tensor), step))
    finally:
        torch.set_num_threads(threads)


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """A .safetensors file, written tensor by tensor; safetensors' own writer makes bytes of all of them first."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            if tensor.numel():
                stream.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
