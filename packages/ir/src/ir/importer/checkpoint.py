"""A model's weights out of the files of a checkpoint, mapped and not read: what is not looked at costs no memory.

A mapped tensor lies in the file. Its pages come into memory when they are read and go again when memory is short, so a
model of any size is exported with no more memory of its own than the largest tensor that is computed on the way.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ir.collector import held_back
from ir.errors import CaptureError
from ir.importer.swapping import swapped
from ir.stored import Stored, checkpoint

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "F16": torch.float16,
    "BF16": torch.bfloat16, "I32": torch.int32, "F32": torch.float32, "I64": torch.int64, "F64": torch.float64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_CHUNK = 1 << 24  # elements that are converted at a time


@held_back
def stored_tensors(source: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name, mapped from its files; writing to one leaves the file as it is.

    Args:
        source: a .safetensors file, a `model.safetensors.index.json`, or a folder with either.

    Raises:
        ExportError: there is none, a shard is missing, or a file is not sound.

    Examples:
        >>> model.load_state_dict(stored_tensors("checkpoint"), assign=True)
        <All keys matched successfully>
    """
    maps: dict[Path, mmap.mmap] = {}
    return {name: _mapped(entry, maps) for name, entry in checkpoint(Path(source)).items() if entry.dtype}


def _mapped(entry: Stored, maps: dict[Path, mmap.mmap]) -> torch.Tensor:
    dtype = _DTYPES[entry.dtype]
    if entry.length == 0:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.file not in maps:
        with entry.file.open("rb") as file:
            maps[entry.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    data = torch.frombuffer(maps[entry.file], dtype=torch.uint8, count=entry.length, offset=entry.offset)
    if entry.offset % dtype.itemsize:  # a header of odd length, which torch does not read elements behind
        data = data.clone()
    return data.view(dtype).reshape(entry.shape)


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Inside of the block modules are built with parameters on the meta device, which have no memory.

    Buffers stay as the module makes them: those that no checkpoint holds (tables of positions) are needed.

    Examples:
        >>> with without_weights():
        ...     model = Model()
        >>> model = load_weights(model, "checkpoint")
    """
    register = torch.nn.Module.register_parameter

    def on_meta(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = torch.nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        register(module, name, param)

    with swapped(torch.nn.Module, "register_parameter", on_meta):
        yield


def load_weights(
    model: torch.nn.Module,
    source: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> torch.nn.Module:
    """Give a model the weights of a checkpoint, which stay in its files until an artifact is written.

    Args:
        model: a module, best built in `without_weights()`; its parameters are replaced.
        source: as for `stored_tensors`.
        dtype: the element type that floating weights are to have. Those of another are converted a piece at a time into
            a file, which is mapped as the checkpoint is, and gone once nothing refers to it.
        scratch: the folder of that file; by default the system's for temporary files.

    Returns:
        The model.

    Raises:
        ExportError: as `stored_tensors`.
        CaptureError: the checkpoint has no tensor for a parameter, or one of another shape.

    Examples:
        >>> program = ir.export(load_weights(model, "checkpoint"), args, path="model.onnx")
    """
    found = stored_tensors(source)
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for name, tensor in found.items():
        if name in own and own[name].shape != tensor.shape:
            given, wanted = list(tensor.shape), list(own[name].shape)
            raise CaptureError(f"{name} has the shape {given} in the checkpoint and {wanted} in the model")
        real = isinstance(own.get(name), torch.nn.Parameter)  # a mask may be of any type
        if real and own[name].is_floating_point() != tensor.is_floating_point():
            kinds = [str(t.dtype).removeprefix("torch.") for t in (tensor, own[name])]
            raise CaptureError(f"{name} is {kinds[0]} in the checkpoint and {kinds[1]} in the model")
    tied = _tied(own, found)
    if missing := [n for n, p in model.named_parameters() if n not in found and n not in tied]:
        raise CaptureError(f"{source} has no weights for {', '.join(missing[:4])}")
    chosen = {n: found[tied.get(n, n)] for n in own if tied.get(n, n) in found}
    model.load_state_dict(_converted(chosen, dtype, scratch), strict=False, assign=True)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in tied:  # one tensor again, which load_state_dict made two parameters of
            _replace(model, name, model.get_parameter(tied[name]))
        parameter.requires_grad_(False)
    return model


def convert_weights(model: torch.nn.Module, dtype: torch.dtype, buffers: Container[str] = ()) -> None:
    """Give floating parameters, and buffers of these names, another element type, in a file as `load_weights` has."""
    own: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    own |= {n: t for n, t in model.named_buffers(remove_duplicate=False) if n in buffers}
    others = {n: t.detach() for n, t in own.items() if t.is_floating_point() and t.dtype != dtype}
    made: dict[int, torch.Tensor] = {}  # one tensor again where several names have it
    for name, tensor in _converted(others, dtype, None).items():
        is_parameter = isinstance(own[name], torch.nn.Parameter)
        new = torch.nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
        _replace(model, name, made.setdefault(id(own[name]), new))


def _tied(own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names that the checkpoint lacks, and the name under which it holds the same parameter."""
    held = {id(t): n for n, t in own.items() if n in found}
    return {n: held[id(t)] for n, t in own.items() if n not in found and id(t) in held}


def _replace(model: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    place, _, last = name.rpartition(".")
    setattr(model.get_submodule(place), last, tensor)


def _converted(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None, scratch: Any) -> dict[str, Any]:
    """The tensors, floating ones in another element type."""
    other = {n: t for n, t in tensors.items() if dtype not in (None, t.dtype) and t.is_floating_point() and t.numel()}
    if dtype is None or not other:
        return dict(tensors)
    unique = {t.data_ptr(): t for t in other.values()}
    starts, end = {}, 0
    for place, tensor in unique.items():
        starts[place] = end
        end += -(-tensor.numel() * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    with tempfile.TemporaryFile(dir=scratch) as file:
        file.truncate(end)
        held = mmap.mmap(file.fileno(), end)  # shared with the file: what is written leaves memory again
    made = {}
    for place, tensor in unique.items():
        data = torch.frombuffer(held, dtype=dtype, count=tensor.numel(), offset=starts[place])
        for piece, source in zip(data.split(_CHUNK), tensor.reshape(-1).split(_CHUNK), strict=True):
            piece.copy_(source)
        made[place] = data.view(tensor.shape)
    return {n: made[t.data_ptr()] if n in other else t for n, t in tensors.items()}
