"""Tensor files (.dat): a header of 128 bytes, then the elements, little-endian and C-contiguous.

Arrays are handed out in pieces, so that a weight travels from its array to the disk without a copy. The last four bytes
of the header, which the standard keeps for later and tract does not look at, hold the CRC-32 of all the others in the
file; zero, as in files that others wrote, is none.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from nnef_backend.errors import DocumentError

HEADER = struct.Struct("<2s2B I I 8I I 2H 32s 40s I")
SIGNED = HEADER.size - 4  # bytes of the header that the checksum is of
MAGIC = b"\x4e\xef"
MAX_RANK = 8
MAX_BYTES = 0xFFFF_FFFF
PIECE_BYTES = 1 << 22
TRACT_VENDOR = 0x5452
Q4_0_ITEM_TYPE = 0x3040
Q4_0_BLOCK, Q4_0_BLOCK_BYTES = 32, 18

# Item types by numpy's kind; what a reader finds for 2 and 3 are quantised integers, stored as plain ones.
ITEM_TYPES = {"f": 0, "u": 1, "i": 4, "b": 5}
KINDS = {0: "f", 1: "u", 2: "u", 3: "i", 4: "i", 5: "b"}
_AT_ONCE = 1 << 17  # blocks


@dataclass(frozen=True, slots=True)
class BlockQuantised:
    """A matrix in tract's Q4_0: blocks of 32 along the rows, each a half-float scale and 16 bytes."""

    shape: tuple[int, ...]
    blocks: np.ndarray  # uint8, (number of blocks, 18)

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes


def quantise_q4_0(array: np.ndarray) -> BlockQuantised:
    """Quantise a float matrix to 4 bits in blocks of 32; an element becomes `scale * (nibble - 8)`.

    Numbers that are such steps already, `dequantise_q4_0` of blocks or calibrated ones, stay what they are.

    Raises:
        DocumentError: rank below 2, or rows that are no multiple of 32 elements long.
    """
    if array.ndim < 2 or math.prod(array.shape[1:]) % Q4_0_BLOCK:
        raise DocumentError(f"Q4_0 wants rank >= 2 and rows of a multiple of {Q4_0_BLOCK} elements, not {array.shape}")
    values = array.reshape(-1, Q4_0_BLOCK)
    blocks = np.empty((len(values), Q4_0_BLOCK_BYTES), np.uint8)
    for at in range(0, len(values), _AT_ONCE):  # so that a large weight needs little memory beside its own
        blocks[at : at + _AT_ONCE] = _blocks(values[at : at + _AT_ONCE])
    return BlockQuantised(array.shape, blocks)


def _blocks(values: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(values, dtype=np.float32)
    scales = _scales(values)
    nibbles = (_codes(values, scales) + 8).astype(np.uint8)
    blocks = np.empty((len(values), Q4_0_BLOCK_BYTES), np.uint8)
    blocks[:, :2] = scales.view(np.uint8)
    blocks[:, 2:] = nibbles[:, :16] | nibbles[:, 16:] << 4
    return blocks


_BEYOND = np.uint32(2**9 - 1)  # the bits of a float32 that a float16 times a code of 4 bits has no use of


def _scales(values: np.ndarray) -> np.ndarray:
    """The scale of each block, float16 [blocks, 1].

    The element of largest magnitude, with its sign, lands on -8: the one code whose opposite is missing. It lands on
    another where all numbers of the block are then steps of the scale, which loses nothing.
    """
    farthest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scales = (farthest / -8).astype(np.float16)
    short = np.flatnonzero((values.view(np.uint32) & _BEYOND == 0).all(axis=1))
    left = short[~_are_steps(values[short], scales[short])]
    some, ends = values[left, ::16], farthest[left]
    for code in (*range(-7, 0), *range(1, 8)) if left.size else ():
        other = (ends / code).astype(np.float16)
        found = np.flatnonzero(_are_steps(some, other))  # most blocks are told by two of their numbers
        found = found[_are_steps(values[left[found]], other[found])]
        scales[left[found]] = other[found]
    return scales


def _codes(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values / np.where(scales == 0, 1, scales).astype(np.float32)), -8, 7)


def _are_steps(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Which rows are whole multiples of their scale."""
    return np.asarray((_codes(values, scales) * scales.astype(np.float32) == values).all(axis=1) & (scales[:, 0] != 0))


def dequantise_q4_0(tensor: BlockQuantised) -> np.ndarray:
    """The float32 values that a Q4_0 tensor stands for."""
    scales = tensor.blocks[:, :2].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([tensor.blocks[:, 2:] & 15, tensor.blocks[:, 2:] >> 4], axis=1)
    return (scales * (nibbles.astype(np.float32) - 8)).reshape(tensor.shape)


def file_size(tensor: np.ndarray | BlockQuantised) -> int:
    """The bytes of the file that `pieces` makes.

    Raises:
        DocumentError: as for `pieces`.
    """
    _header(tensor)
    return HEADER.size + _data_bytes(tensor)


def pieces(tensor: np.ndarray | BlockQuantised) -> Iterator[bytes | memoryview]:
    """The file of a tensor, in pieces that are views of a contiguous array and small copies of any other.

    Raises:
        DocumentError: a dtype that NNEF has not, rank above 8, or 4 GiB of data and more.
    """
    head = _header(tensor)
    checksum = zlib.crc32(head[:SIGNED])
    for piece in _content(tensor):
        checksum = zlib.crc32(piece, checksum)
    yield head[:SIGNED] + checksum.to_bytes(4, "little")
    yield from _content(tensor)


def _content(tensor: np.ndarray | BlockQuantised) -> Iterator[bytes | memoryview]:
    array = tensor.blocks if isinstance(tensor, BlockQuantised) else tensor
    little = array.dtype.newbyteorder("<")
    if array.size == 0:
        yield bytes(_data_bytes(tensor))
    elif array.flags.c_contiguous and array.dtype == little:
        data = array.reshape(-1).view(np.uint8).data
        yield from (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))
    else:
        step = max(1, PIECE_BYTES // array.itemsize)
        for start in range(0, array.size, step):
            yield array.flat[start : start + step].astype(little, copy=False).tobytes()


def write_dat(stream: BinaryIO, tensor: np.ndarray | BlockQuantised) -> int:
    """Write one tensor file and return its size.

    Raises:
        DocumentError: as for `pieces`.
    """
    return sum(stream.write(piece) for piece in pieces(tensor))


def read_dat(stream: BinaryIO) -> np.ndarray | BlockQuantised:
    """Read one tensor file, as tract or the Khronos tools write them, too.

    Raises:
        DocumentError: not a tensor file, or one of a kind that is not known here.
    """
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size or head[:2] != MAGIC:
        raise DocumentError("not an NNEF tensor file")
    _, major, _, length, rank, *rest = HEADER.unpack(head)
    if major != 1 or rank > MAX_RANK:
        raise DocumentError(f"NNEF tensor file of version {major} and rank {rank}")
    shape, (bits, item_type, vendor) = tuple(rest[:rank]), rest[8:11]
    data = stream.read(length)
    if len(data) != length:
        raise DocumentError(f"the tensor file ends after {len(data)} of {length} bytes")
    if 0 in shape:
        data = b""
    if vendor == TRACT_VENDOR and item_type == Q4_0_ITEM_TYPE:
        return BlockQuantised(shape, np.frombuffer(data, np.uint8).reshape(-1, Q4_0_BLOCK_BYTES))
    if vendor or item_type not in KINDS:
        raise DocumentError(f"unknown item type {item_type:#x} of vendor {vendor:#x}")
    if item_type == ITEM_TYPES["b"] and bits == 1:
        flags = np.unpackbits(np.frombuffer(data, np.uint8), count=math.prod(shape))
        return flags.astype(np.bool_).reshape(shape)
    # The Khronos writer marks signed integers by a one in the first parameter.
    kind = "i" if item_type == ITEM_TYPES["u"] and rest[11][0] else KINDS[item_type]
    return np.frombuffer(data, np.dtype(f"<{kind}{bits // 8}")).reshape(shape)


def check_header(stream: BinaryIO, size: int) -> bytes:
    """The header of a tensor file of `size` bytes, whose numbers fit that size.

    Raises:
        DocumentError: they do not, or it is no tensor file.
    """
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size or head[:2] != MAGIC:
        raise DocumentError("not an NNEF tensor file")
    _, _, _, length, rank, *rest = HEADER.unpack(head)
    shape, (bits, item_type, vendor) = rest[: min(rank, MAX_RANK)], rest[8:11]
    known = not vendor and item_type in KINDS
    packed = vendor == TRACT_VENDOR and item_type == Q4_0_ITEM_TYPE
    items = math.prod(shape)
    least = items // Q4_0_BLOCK * Q4_0_BLOCK_BYTES if packed else (items * bits + 7) // 8 if known else length
    if rank > MAX_RANK or length != size - HEADER.size or (items and least != length) or least > length:
        raise DocumentError(f"its header says {length} bytes of data and the shape {shape}, which does not fit it")
    return head


def check(stream: BinaryIO, size: int) -> None:
    """Read one tensor file of `size` bytes through, and compare its header with its length and its checksum.

    Raises:
        DocumentError: they do not agree, or it is no tensor file.
    """
    head = check_header(stream, size)
    checksum = zlib.crc32(head[:SIGNED])
    while piece := stream.read(PIECE_BYTES):
        checksum = zlib.crc32(piece, checksum)
    if HEADER.unpack(head)[-1] not in (0, checksum):
        raise DocumentError("its checksum is not the one that was written; export the model again")


def _data_bytes(tensor: np.ndarray | BlockQuantised) -> int:
    # tract takes eight bits off the length of boolean data before it compares: no data at all would
    # underflow.
    no_flags = isinstance(tensor, np.ndarray) and tensor.size == 0 and tensor.dtype.kind == "b"
    return 1 if no_flags else tensor.nbytes


def _header(tensor: np.ndarray | BlockQuantised) -> bytes:
    shape = tensor.shape
    if len(shape) > MAX_RANK:
        raise DocumentError(f"an NNEF tensor file holds rank {MAX_RANK} at most, not {len(shape)}")
    if tensor.nbytes > MAX_BYTES or any(extent > MAX_BYTES for extent in shape):
        raise DocumentError(
            f"an NNEF tensor file holds less than 4 GiB, not {tensor.nbytes} bytes (shape {shape}); split the tensor"
        )
    if isinstance(tensor, BlockQuantised):
        bits, item_type, vendor = MAX_BYTES, Q4_0_ITEM_TYPE, TRACT_VENDOR
    else:
        dtype = tensor.dtype
        if dtype.kind not in ITEM_TYPES or dtype.itemsize > 8:
            raise DocumentError(f"no NNEF tensor file holds {dtype}")
        bits, item_type, vendor = 8 * dtype.itemsize, ITEM_TYPES[dtype.kind], 0
    extents = [*shape, *[0] * (MAX_RANK - len(shape))]
    return HEADER.pack(MAGIC, 1, 0, _data_bytes(tensor), len(shape), *extents, bits, item_type, vendor, b"", b"", 0)
