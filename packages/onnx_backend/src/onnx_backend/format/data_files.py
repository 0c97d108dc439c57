"""The files beside a model that hold its weights: which it refers to, what a new one is called, which may go.

The places are read off the file's bytes without its weights, so an embedded model of 2 GB costs some seeks. Format: the
protocol buffers' wire format (https://protobuf.dev/programming-guides/encoding), field numbers of onnx.proto.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import onnx
from google.protobuf.message import DecodeError

from ir.errors import ExportError
from ir.files import opened

_SIZES = {1: 8, 5: 4}  # bytes of the wire types of fixed length


def locations(model: Path) -> set[str]:
    """The files that the graph's initializers lie in, as the model names them, relative to its folder.

    Raises:
        ValueError: the file is no model.
        OSError: it cannot be read.
    """
    graph, initializer = number_of(onnx.ModelProto, "graph"), number_of(onnx.GraphProto, "initializer")
    external = number_of(onnx.TensorProto, "external_data")
    key, value = (number_of(onnx.StringStringEntryProto, part) for part in ("key", "value"))
    found = set()
    with model.open("rb") as file:
        places = [(0, model.stat().st_size)]
        for field in (graph, initializer, external):
            places = [place for start, end in places for place in fields(file, start, end, field)]
        for start, end in places:
            pair = [next(fields(file, start, end, part), (start, start)) for part in (key, value)]
            texts = [read(file, first, last).decode() for first, last in pair]
            if texts[0] == "location":
                found.add(texts[1])
    return found


def number_of(message: Any, field: str) -> int:
    """The number of a field, by which its contents are told."""
    found: int = message.DESCRIPTOR.fields_by_name[field].number
    return found


def check_data(path: str | Path) -> int:
    """Compare the data files of a model with the checksums that stand in it, and say how many had one.

    Raises:
        ExportError: a file is missing, is no plain file, or holds other bytes than were written.

    Examples:
        >>> check_data("model.onnx")  # doctest: +SKIP
    """
    model = Path(path)
    try:
        with opened(model) as file:
            held = onnx.load_model_from_string(file.read())
    except DecodeError as error:
        raise ExportError(f"{model} holds no ONNX model") from error
    except OSError as error:
        raise ExportError(f"{model} cannot be read ({error.strerror or error})") from error
    pairs = ({e.key: e.value for e in t.external_data} for t in held.graph.initializer)
    sums = {p["location"]: p["checksum"] for p in pairs if "checksum" in p}
    for name, wanted in sums.items():
        try:
            with opened(model.parent / name) as file:
                found = hashlib.file_digest(file, "sha1") if hasattr(hashlib, "file_digest") else _digest(file)
        except OSError as error:
            raise ExportError(f"{model}: its data file {name} cannot be read ({error.strerror or error})") from error
        if found.hexdigest() != wanted:
            raise ExportError(f"{model}: its data file {name} holds other bytes than were written; export it again")
    return len(sums)


def has_data(model: Path) -> bool:
    """Whether a model's weights lie in files beside it; not of a file that is no model."""
    return bool(_known(model))


def _digest(file: BinaryIO) -> Any:
    made = hashlib.sha1(usedforsecurity=False)  # until Python 3.11
    while piece := file.read(1 << 24):
        made.update(piece)
    return made


def fields(file: BinaryIO, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Where the contents of the fields of that number begin and end, in the message between two places."""
    while start < end:
        tag, start = _varint(file, start)
        if tag & 7 == 0:
            _, start = _varint(file, start)
            continue
        if tag & 7 == 2:
            length, start = _varint(file, start)
        elif tag & 7 in _SIZES:
            length = _SIZES[tag & 7]
        else:
            raise ValueError(f"wire type {tag & 7}")
        if tag >> 3 == 0 or start + length > end:
            raise ValueError("a field that does not fit its message")
        if tag >> 3 == wanted:
            yield start, start + length
        start += length
    if start > end:
        raise ValueError("a number that does not fit its message")


def read(file: BinaryIO, start: int, end: int) -> bytes:
    """The bytes between two places."""
    file.seek(start)
    return file.read(end - start)


def _varint(file: BinaryIO, start: int) -> tuple[int, int]:
    """The number that begins at a place, and where it ends."""
    number = 0
    for i, byte in enumerate(read(file, start, start + 10)):
        number |= (byte & 127) << (7 * i)
        if byte < 128:
            return number, start + i + 1
    raise ValueError("a number that does not end")


def new_names(folder: Path, model: str) -> Iterator[str]:
    """Names for the data files of a model that no file has: the older model's stay whole until they are replaced."""
    names = itertools.chain([f"{model}.data"], (f"{model}.{i}.data" for i in itertools.count(1)))
    return (name for name in names if not _exists(folder / name))


def is_name(name: str, model: Path) -> bool:
    """Whether it is one of `new_names`."""
    return re.fullmatch(rf"{re.escape(model.name)}(\.\d+)?\.data", name, re.ASCII) is not None


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def own(model: Path) -> set[str]:
    """The data files that go with a model once it is replaced: those that it refers to and that bear its name.

    None of a model that cannot be read, or that is a link: the file behind that stays. None that another model of the
    folder, such as a copy of this one, refers to.
    """
    if model.is_symlink() or not model.is_file():
        return set()
    found = {name for name in _known(model) if is_name(name, model)}
    others = (p for p in model.parent.glob("*.onnx") if found and p != model and p.is_file())
    return found.difference(*map(_known, others))


def _known(model: Path) -> set[str]:
    """As `locations`; none of a file that cannot be read."""
    try:
        return locations(model)
    except (ValueError, OSError):
        return set()
