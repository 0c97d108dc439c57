"""Arrays out of .npy and .npz files, which may come from anywhere: what a file claims is compared with what it has."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from ir.cli.wrong import WrongCall
from ir.files import opened

_RATIO = 1100  # of an array to its bytes in a .npz: deflate, the one compression that numpy writes, comes to 1032
_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def arrays_in(path: str) -> list[tuple[str, np.ndarray]]:
    """The arrays of a file, each with its name, which is empty for that of a .npy.

    Raises:
        WrongCall: it cannot be read, or holds no such arrays.
    """
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            return _members(file, size) if path.lower().endswith(".npz") else [("", _array(file, size))]
    except OSError as error:
        raise WrongCall(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except Exception as error:  # numpy, zipfile and what they decompress with raise errors of many classes
        raise WrongCall(
            f"{path} holds no arrays of numbers, or is damaged: write it with numpy.save or numpy.savez"
        ) from error


def _members(file: BinaryIO, size: int) -> list[tuple[str, np.ndarray]]:
    with zipfile.ZipFile(file) as archive:
        held = archive.infolist()
        if sum(m.file_size for m in held) > _RATIO * size:
            raise ValueError("it claims to unpack to more than can be packed")
        if any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in held):
            raise ValueError("a compression that numpy does not write")
        found = []
        for member in held:
            with archive.open(member) as stream:
                found.append((member.filename.removesuffix(".npy"), _array(stream, member.file_size)))
        return found


def _array(stream: Any, size: int) -> np.ndarray:
    """The array of a stream of so many bytes; numpy takes memory for what a header claims before it reads it."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError("a version of names that are no ASCII, which numbers have not")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError("objects, elements of no bytes, or sizes below 0")
    if math.prod(shape) * dtype.itemsize > size - stream.tell():
        raise ValueError("more elements than there are bytes for")
    stream.seek(0)
    read: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return read.astype(read.dtype.newbyteorder("="), copy=False)  # torch has no other order of bytes
