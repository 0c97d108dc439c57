"""The tensors of a .pt2 file: views of the mapped records, checked to lie inside of them."""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.pt2 import pickles
from ir.importer.pt2.archive import Archive
from ir.importer.pt2.expressions import Size
from ir.importer.pt2.values import boolean, described, text
from ir.importer.tensor_meta import Described
from ir.importer.torch_api import PT2_BYTE_ORDER, PT2_TABLE
from ir.importer.weights import has_only_truths

_MOST_TIMES, _MOST_REPEATED = 8, 1 << 28  # the tensors' bytes: so many times the file's, and so many more
_FILE_NAME = re.compile(r"[\w.-]+")
_WAY_OUT = "load a file that you trust with torch.export.load and pass the ExportedProgram"


class Payloads:
    """The tensors that one table of the archive names; those in one record share its memory."""

    def __init__(self, archive: Archive, folder: str, model: str) -> None:
        self.archive = archive
        self.folder = folder
        self._bases: dict[str, torch.Tensor] = {}
        self._seen: set[Any] = set()
        self._left = _MOST_TIMES * archive.length + _MOST_REPEATED
        self.tensors: dict[str, torch.Tensor] = {}
        if archive.has(f"{folder}{model}.pt"):
            raise CaptureError(f"weights in an older format, which can hold any pickle ({model}.pt): {_WAY_OUT}")
        table = json.loads(archive.document(f"{folder}{model}_{folder.split('/')[1]}{PT2_TABLE}"))["config"]
        for name, payload in table.items():
            self.tensors[name] = self._tensor(name, payload)

    def _tensor(self, name: str, payload: Any) -> torch.Tensor:
        file = text(payload["path_name"])
        if not _FILE_NAME.fullmatch(file):
            raise CaptureError(f"the tensor {name} lies at {file!r}, outside of the archive")
        if file.startswith(("custom_obj_", "opaque_obj_")) or payload.get("tensor_meta") is None:
            raise CaptureError(f"the constant {name} is a pickled object: {_WAY_OUT}")
        meta = described(payload["tensor_meta"])
        if boolean(payload["use_pickle"]):
            tensor = self._unpickled(name, file, meta)
        else:
            tensor = self._mapped(name, file, meta)
        if not has_only_truths(tensor):
            raise CaptureError(f"the tensor {name} has truth values that are neither 0 nor 1")
        if not boolean(payload["is_param"]):
            return tensor
        real = meta.dtype.is_floating_point or meta.dtype.is_complex
        return torch.nn.Parameter(tensor, requires_grad=meta.requires_grad and real)

    def _mapped(self, name: str, file: str, meta: Described) -> torch.Tensor:
        if meta.layout is not torch.strided or any(
            isinstance(s, Size) for s in (*meta.shape, *meta.strides, meta.offset)
        ):
            raise CaptureError(f"the tensor {name} has no plain sizes and strides")
        width = meta.dtype.itemsize
        last = meta.offset + sum((n - 1) * s for n, s in zip(meta.shape, meta.strides, strict=True))
        size = self.archive.size(self.folder + file)
        if math.prod(meta.shape) == 0:
            return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype)
        if (last + 1) * width > size:
            raise CaptureError(
                f"the tensor {name} of sizes {list(meta.shape)} reaches over the end of its {size} bytes"
            )
        self._pay(name, file, meta)
        base = self._bases.get(file)
        if base is None:
            data = self.archive.view(self.folder + file)
            base = self._bases[file] = torch.frombuffer(data, dtype=torch.uint8)
        if base.data_ptr() % width:  # by another writer: torch's own places all records at multiples of 64 bytes
            base = self._bases[file] = base.clone()
        return base[: size // width * width].view(meta.dtype).as_strided(meta.shape, meta.strides, meta.offset)

    def _pay(self, name: str, file: str, meta: Described) -> None:
        """For a tensor's bytes, which one that was expanded repeats; tied ones, which are one tensor, once."""
        place = file, meta.dtype, meta.shape, meta.strides, meta.offset
        if place not in self._seen:
            self._seen.add(place)
            self._left -= math.prod(meta.shape) * meta.dtype.itemsize
        if self._left < 0:
            raise CaptureError(
                f"the tensor {name} of sizes {list(meta.shape)} and strides {list(meta.strides)}, and those before it, "
                f"repeat the {self.archive.length} bytes of the file too often: make them contiguous in the model"
            )

    def _unpickled(self, name: str, file: str, meta: Described) -> torch.Tensor:
        """A tensor subclass, by torch's restricted unpickler: it makes what its library has put on torch's list.

        A pickle tells its tensor's type and place itself: one that is another than its description says, or has no
        data, would be noticed by whatever kernel reads it first. torch.export.save writes none that is sparse.
        """
        data = bytes(self.archive.view(self.folder + file))
        try:
            tensor = pickles.load(data)
        except CaptureError as error:
            raise CaptureError(f"the tensor {name} holds pickled Python objects: {error}; {_WAY_OUT}") from error
        if not isinstance(tensor, torch.Tensor):
            raise CaptureError(f"the tensor {name} is a pickled {type(tensor).__name__}: {_WAY_OUT}")
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            kind = "quantised" if tensor.is_quantized else "without data" if tensor.is_meta else tensor.layout
            raise CaptureError(f"the pickled tensor {name} is no plain one ({kind})")
        given = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device.type
        if given != (meta.dtype, meta.shape, meta.strides, meta.device.type):
            raise CaptureError(f"the pickled tensor {name} is another one than its description says")
        self._pay(name, file, meta)
        return tensor


def check_byte_order(archive: Archive) -> None:
    """Raises CaptureError: the tensors were written by a machine of the other byte order."""
    order = bytes(archive.view(PT2_BYTE_ORDER)).decode("ascii", "replace") if archive.has(PT2_BYTE_ORDER) else "little"
    if order != sys.byteorder:
        raise CaptureError(f"its tensors are in byte order {order!r:.20}, this machine's is {sys.byteorder}")
