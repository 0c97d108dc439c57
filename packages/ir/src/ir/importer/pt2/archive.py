"""The zip archive of a .pt2 file: plain records in a mapped file, each checked against its CRC-32 before it is used.

torch.export.save stores records uncompressed, in one folder, and names them in a directory at the end. Whatever
differs from that is refused: nothing else reads such a file as torch does.
"""

from __future__ import annotations

import mmap
import struct
import weakref
import zlib
from pathlib import Path

from ir.documents import LONGEST, too_large
from ir.errors import CaptureError
from ir.importer.torch_api import (
    PT2_BYTE_ORDER,
    PT2_COMPILED,
    PT2_CONSTANTS,
    PT2_EXAMPLES,
    PT2_FORMAT,
    PT2_MODELS,
    PT2_WEIGHTS,
)

_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
_ENTRY, _LOCAL = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s5H3I2H")
_IN_64 = 0xFFFFFFFF
_MOST_RECORDS = 1_000_000
_DESCRIPTOR, _UTF8 = 0x8, 0x800  # flags: sizes stand behind the data, the name is UTF-8
_KNOWN = (PT2_FORMAT, PT2_BYTE_ORDER, PT2_MODELS, PT2_WEIGHTS, PT2_CONSTANTS, PT2_EXAMPLES, *PT2_COMPILED, "data/",
          "archive_version", "version", ".data/", "extra/")  # fmt: skip
_NO_ARCHIVE = "it is no .pt2 archive of torch.export.save, as files of targets (.onnx) are none, or was cut off"


class Archive:
    """The records of one file by name, without the folder that they lie in.

    The file stays mapped as long as something reads it, and must not be written to meanwhile; a file that is put in
    its place is another one.
    """

    def __init__(self, path: Path) -> None:
        """Raises CaptureError: the file is missing, or is no archive as torch.export.save writes it."""
        try:
            if not path.is_file():
                raise CaptureError("it is no plain file" if path.exists() else "no such file")
            self._file = path.open("rb", buffering=0)
            weakref.finalize(self, self._file.close)  # a file that is left open to the collector is a ResourceWarning
            self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CaptureError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from error
        self._records = Records(self._bytes)
        self._records.check_known()
        self._checked: set[str] = set()
        self._buffer = bytearray(1 << 18)

    @property
    def names(self) -> list[str]:
        return self._records.names

    @property
    def length(self) -> int:
        """The bytes of the file."""
        return len(self._bytes)

    def has(self, name: str) -> bool:
        """Whether there is such a record; see Records.has."""
        return self._records.has(name)

    def size(self, name: str) -> int:
        """The length of a record."""
        return self._records.place(name)[1]

    def view(self, name: str) -> memoryview:
        """The bytes of a record, mapped.

        Raises:
            CaptureError: there is no such record, or its CRC-32 is another one.
        """
        start, size, crc = self._records.place(name)
        if name not in self._checked:
            if self._crc(start, size) != crc:
                raise CaptureError(f"the record {name} is damaged: its CRC-32 is not the one that was written with it")
            self._checked.add(name)
        return memoryview(self._bytes)[start : start + size]

    def document(self, name: str) -> bytes:
        """The text of a record that holds JSON.

        Raises:
            CaptureError: as `view`, or it is larger than any program's.
        """
        data = bytes(self.view(name)[: LONGEST + 1])
        if reason := too_large(data):
            raise CaptureError(f"the record {name} {reason}, which no program needs")
        return data

    def _crc(self, start: int, size: int) -> int:
        """Of a part of the file, read through a small buffer: half the time of touching every mapped page."""
        crc = 0
        self._file.seek(start)
        while size > 0:
            count = self._file.readinto(memoryview(self._buffer)[: min(size, len(self._buffer))])
            if not count:
                raise CaptureError("the file became shorter while it was read")
            crc = zlib.crc32(memoryview(self._buffer)[:count], crc)
            size -= count
        return crc


class Records:
    """Where each record of an archive lies, by its name without the folder."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        """Raises CaptureError: it is no archive as torch.export.save and torch.save write them."""
        self._bytes = data
        try:
            self._places = self._read_directory()
        except (struct.error, UnicodeError, OverflowError) as error:
            raise CaptureError(_NO_ARCHIVE) from error
        self._by_case = {_folded(name): name for name in self._places}
        if len(self._by_case) != len(self._places):
            lost = sorted(set(self._places) - set(self._by_case.values()))[0]
            raise _another_case(lost, self._by_case[_folded(lost)])

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def has(self, name: str) -> bool:
        """Whether there is such a record.

        Raises:
            CaptureError: there is one whose name differs in capitals alone, which torch would take.
        """
        found = self._by_case.get(_folded(name))
        if found is not None and found != name:
            raise _another_case(found, name)
        return found is not None

    def place(self, name: str) -> tuple[int, int, int]:
        """Where a record starts, how long it is, and its CRC-32."""
        if not self.has(name):
            raise CaptureError(f"it has no record {name}")
        return self._places[name]

    def check_known(self) -> None:
        """Raises CaptureError: a folder of the format's, or a record beside them, has other capitals."""
        for place in {name[: name.rfind("/") + 1] or name for name in self._places}:
            for known in _KNOWN:
                if _folded(place).startswith(known.encode()) and not place.startswith(known):
                    raise _another_case(place, known)

    def _read_directory(self) -> dict[str, tuple[int, int, int]]:
        """Where each record starts, how long it is, and its CRC-32."""
        at, end, count = self._directory()
        found: dict[str, tuple[int, int, int]] = {}
        folders: set[str] = set()
        taken: list[tuple[int, int]] = []
        for _ in range(count):
            full, flags, crc, size, header, at = self._entry(at)
            start = self._after_local_header(header, full, flags, crc, size)
            folder, _, name = full.decode().partition("/")
            _check_name(full.decode())
            if name in found:
                raise CaptureError(f"two records have the name {name}")
            folders.add(folder)
            found[name] = start, size, crc
            taken.append((header, start + size))
        if at != end:
            raise CaptureError("the archive's directory is not as long as it says")
        if "" in found or len(folders) != 1:
            # torch.export.load falls back to files at the top, an older format of pickles, where it finds no program
            raise CaptureError("the archive's records do not lie in one folder, which torch.export.save makes")
        taken.sort()
        if any(end > start for (_, end), (start, _) in zip(taken, [*taken[1:], (at, at)], strict=True)):
            raise CaptureError("records of the archive overlap")
        return found

    def _directory(self) -> tuple[int, int, int]:
        """Start, end and number of entries of the directory; it ends where the records at the end of the file start."""
        last = len(self._bytes) - _END.size
        mark, disk, first, here, count, length, start, comment = _END.unpack_from(self._bytes, max(last, 0))
        if last < 0 or mark != b"PK\5\6" or disk or first or here != count or comment:
            raise CaptureError(_NO_ARCHIVE)
        behind = last
        locator = last - _LOCATOR64.size
        if locator >= 0 and self._bytes[locator : locator + 4] == b"PK\6\7":
            _, disk, behind, disks = _LOCATOR64.unpack_from(self._bytes, locator)
            if disk or disks != 1 or behind + _END64.size != locator:
                raise CaptureError("the archive's two directories differ")
            mark, rest, _, _, disk, first, here, many, long, begin = _END64.unpack_from(self._bytes, behind)
            short = [(count, many, 0xFFFF), (length, long, _IN_64), (start, begin, _IN_64)]
            if mark != b"PK\6\6" or rest != _END64.size - 12 or disk or first or here != many:
                raise CaptureError("the archive's two directories differ")
            if any(small not in (large, escape) for small, large, escape in short):
                raise CaptureError("the archive's two directories differ")
            count, length, start = many, long, begin
        if start + length != behind or count > _MOST_RECORDS:
            raise CaptureError("the archive's directory is not where it says")
        return start, behind, count

    def _entry(self, at: int) -> tuple[bytes, int, int, int, int, int]:
        """Name, flags, CRC-32, size and place of the header of one record, and where the next entry starts."""
        (mark, _, _, flags, method, _, _, crc, packed, size, named, extra, comment, disk, _, _,
         header) = _ENTRY.unpack_from(self._bytes, at)  # fmt: skip
        at += _ENTRY.size
        name, more = self._bytes[at : at + named], self._bytes[at + named : at + named + extra]
        if mark != b"PK\1\2" or disk or comment or len(more) != extra:
            raise CaptureError("the archive's directory is damaged")
        if method or flags & ~(_DESCRIPTOR | _UTF8):
            raise CaptureError(f"the record {name!r} is compressed or encrypted, which torch.export.save never does")
        size, packed, header = _wide(more, size, packed, header)
        if size != packed:
            raise CaptureError(f"the record {name!r} has two sizes")
        return name, flags, crc, size, header, at + named + extra

    def _after_local_header(self, at: int, name: bytes, flags: int, crc: int, size: int) -> int:
        """Where a record's bytes start; its own header must say what the directory says."""
        mark, _, given, method, _, _, its_crc, packed, its_size, named, extra = _LOCAL.unpack_from(self._bytes, at)
        start: int = at + _LOCAL.size + named + extra
        same = mark == b"PK\3\4" and given == flags and not method and start + size <= len(self._bytes)
        if not same or self._bytes[at + _LOCAL.size : at + _LOCAL.size + named] != name:
            raise CaptureError(f"the record {name!r} and the archive's directory differ")
        here = its_crc, its_size, packed
        later = flags & _DESCRIPTOR and its_crc == 0 and {its_size, packed} <= {0, _IN_64}
        if here != (crc, size, size) and not later:
            wide = _wide(self._bytes[start - extra : start], its_size, packed, 0)[:2]
            if its_crc != crc or wide != (size, size):
                raise CaptureError(f"the record {name!r} and the archive's directory differ")
        return start


def _wide(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """The three numbers, those that are too large for 32 bits out of the extra field of zip64."""
    numbers = [size, packed, header]
    at = 0
    while at + 4 <= len(extra) and _IN_64 in numbers:
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            wanted = [i for i, n in enumerate(numbers) if n == _IN_64]
            for i, number in zip(wanted, struct.unpack_from(f"<{len(wanted)}Q", body), strict=True):
                numbers[i] = number
            break
        at += 4 + length
    return numbers[0], numbers[1], numbers[2]


def _folded(name: str) -> bytes:
    """As torch's reader compares names: without the difference of ASCII's capitals."""
    return name.encode().lower()


def _another_case(name: str, other: str) -> CaptureError:
    return CaptureError(
        f"the archive's record {name!r:.100} differs from {other!r:.100} in capitals alone, where torch takes either"
    )


def _check_name(name: str) -> None:
    if name.startswith(("/", "\\")) or ":" in name or "\0" in name or ".." in name.replace("\\", "/").split("/"):
        raise CaptureError(f"the archive's record {name!r} leaves the archive")
