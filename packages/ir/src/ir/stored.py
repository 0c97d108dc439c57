"""Weights on disk: what lies where in a .safetensors file, and in the shards that an index names.

A file is 8 bytes of header length (little endian), a header in JSON, then the tensors' bytes, row-major and little
endian (https://huggingface.co/docs/safetensors, "Format"). The file is not trusted: a header that does not fit its file
is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ir.collector import held_back
from ir.documents import LONGEST, too_large
from ir.errors import ExportError
from ir.files import opened

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_LIMIT = 10_000_000  # bytes, of which JSON in Python makes forty times as many; the format allows 100 MB
MAX_RANK = 64
_PIECE = 1 << 20  # bytes that are read at a time
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8,
}  # fmt: skip


class Stored(NamedTuple):
    """A tensor of a file: its bytes lie from `offset` of the file on; `dtype` in the file's words, "" of others."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True)
class Shards:
    """The .safetensors files of a checkpoint, which lie in one folder."""

    folder: Path
    files: tuple[Path, ...]


def shards_in(folder: Path) -> Shards:
    """Those of a folder under the names that they have there."""
    return Shards(folder, tuple(sorted(folder.glob("*.safetensors"))))


def linked_shards(folder: Path) -> Shards:
    """Those of a folder where they really lie: a cache of Hugging Face has links to them.

    Raises:
        ExportError: there is none, or they lie in several folders.
    """
    files = tuple(file.resolve() for file in shards_in(folder).files)
    folders = sorted({file.parent for file in files})
    if len(folders) != 1:
        found = f"links to files in {len(folders)} folders" if folders else "no .safetensors file"
        raise ExportError(f"{folder!s:.300} holds {found}: give the one folder that all the weights lie in")
    return Shards(folders[0], files)


@held_back
def tensors_of(file: Path, way: str = "download it again") -> list[Stored]:
    """The tensors of a file; those of element types that torch has not as bytes, with no `dtype`.

    Raises:
        ExportError: the header does not fit the file; `way` is what the message says to do.
    """

    def wrong(reason: str) -> ExportError:
        shown = str(file) if str(file).isprintable() else ascii(str(file))
        return ExportError(f"{shown} is no sound .safetensors file: {reason}; {way}")

    if not os.fsencode(file.name).decode(errors="ignore") == file.name:
        raise wrong("its name is no UTF-8")
    try:
        with opened(file) as stream:
            total = os.fstat(stream.fileno()).st_size
            size = int.from_bytes(stream.read(8), "little")
            if total < 8 or size > min(HEADER_LIMIT, total - 8):
                raise wrong(f"its header claims {size} bytes, the file has {total}")
            raw = stream.read(size)
    except OSError as error:
        raise wrong(error.strerror or str(error)) from error
    try:
        header = json.loads(raw, object_pairs_hook=_distinct)
        found = [_stored(file, name, value, 8 + size) for name, value in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise wrong(f"its header cannot be read ({type(error).__name__}: {error})") from error
    end = 8 + size
    for entry in sorted(found, key=lambda e: (e.offset, e.length)):
        if entry.offset < end or entry.offset + entry.length > total:
            raise wrong(f"{entry.name!r:.200} lies outside of the file or over another tensor")
        if math.prod(n or 1 for n in entry.shape) >= 2**63:  # torch computes strides of empty tensors, too
            raise wrong(f"{entry.name!r:.200} of shape {entry.shape!s:.200} is larger than there can be")
        if entry.length * 8 != math.prod(entry.shape) * BITS.get(entry.dtype, 8) or min(entry.shape, default=0) < 0:
            raise wrong(f"{entry.name!r:.200} of shape {entry.shape!s:.200} has {entry.length} bytes")
        end = entry.offset + entry.length
    reason = f"{total - end} bytes follow its last tensor" if end != total else _no_truths(file, found)
    if reason:
        raise wrong(reason)
    return found


def _no_truths(file: Path, found: Sequence[Stored]) -> str:
    """Says which tensor of truth values has other bytes than 0 and 1, of which each runtime makes something else."""
    entries = [e for e in found if e.dtype == "BOOL"]
    if not entries:
        return ""
    try:
        with opened(file) as stream:
            for entry in entries:
                stream.seek(entry.offset)
                for start in range(0, entry.length, _PIECE):
                    if stream.read(min(_PIECE, entry.length - start)).translate(None, b"\0\1"):
                        return f"{entry.name!r:.200} has truth values that are neither 0 nor 1"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands twice")
    return made


def _stored(file: Path, name: str, value: Mapping[str, Any], base: int) -> Stored:
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if len(shape) > MAX_RANK:
        raise ValueError(f"{name!r} has {len(shape)} dimensions")
    if not all(type(n) is int for n in (begin, end, *shape)):
        raise ValueError(f"{name!r} has a size that is no integer")
    if value["dtype"] not in BITS:  # of no use here, but its place counts
        return Stored(file, name, "", (end - begin,), base + begin, end - begin)
    return Stored(file, name, value["dtype"], shape, base + begin, end - begin)


def chosen(folder: Path) -> Path | None:
    """The file by which transformers finds the weights in a folder; None where it has neither the one nor the other.

    The whole file goes before an index: either may be left from an older `save_pretrained`.
    """
    return next((place for name in (WHOLE, INDEX) if (place := folder / name).is_file()), None)


def checkpoint(source: Path) -> dict[str, Stored]:
    """The tensors of a checkpoint by name: a .safetensors file, an index, or a folder with either.

    Raises:
        ExportError: there is none, a shard of the index is missing or lies outside of the folder, or one is not sound;
            or a tensor lies in two files of a folder, and nothing says in which.
    """
    files = [source]
    if source.is_dir():
        files = [own] if (own := chosen(source)) else sorted(source.glob("*.safetensors"))
        if not files:
            raise ExportError(f"{source}: there is no {INDEX} and no .safetensors file")
    if files[0].name.endswith(".json"):
        return _indexed(files[0])
    found: dict[str, Stored] = {}
    for entry in (entry for file in files for entry in tensors_of(file)):
        if (other := found.setdefault(entry.name, entry)) is not entry:
            raise ExportError(f"{source}: {entry.name!r:.200} lies in {other.file.name} and in {entry.file.name}, and "
                              f"there is no {INDEX} that says in which: give the file that is meant")  # fmt: skip
    return found


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:  # a name that is too long
        return False


def _indexed(index: Path) -> dict[str, Stored]:
    try:
        with opened(index) as file:
            text = file.read(LONGEST + 1)
        if reason := too_large(text):
            raise ExportError(f"{index} {reason}, which no index of shards needs")
        names = json.loads(text, object_pairs_hook=_distinct)["weight_map"]
        shards = sorted({str(name) for name in names.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExportError(f"{index} is no index of shards: {type(error).__name__}: {error}") from error
    held: dict[str, dict[str, Stored]] = {}
    for shard in shards:
        place = index.parent / shard
        if place.parent != index.parent or not _is_file(place):
            raise ExportError(f"{index} names the shard {shard!r:.100}, and there is no such file beside it; "
                              "download the whole checkpoint")  # fmt: skip
        held[shard] = {entry.name: entry for entry in tensors_of(place)}
    if lost := [n for n, shard in names.items() if n not in held[shard]]:
        raise ExportError(f"{index} says that {lost[0]} lies in {names[lost[0]]}, which does not hold it")
    return {n: held[shard][n] for n, shard in names.items()}
