"""The folder that an export writes: made beside its place, moved there whole, and described by one file in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ir.errors import CaptureError, OutputError
from ir.files import opened, size_text, staged, strange
from language_models.contract import Contract, Described, State

MANIFEST = "language_model.json"
_LONGEST = 1 << 24  # bytes of it
FILES_ELSEWHERE = "weights_files"  # its entry of what `references` notes
FINGERPRINTS = "fingerprints"  # its entry of what tells its files from others of their names
FORMAT = 1
_END = 1 << 16  # bytes at each end of a file that its fingerprint is of
# what a strange description raises
UNSOUND = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Manifest(Described):
    """What is in a folder, for whoever opens it to generate; `one_by_one`: the step takes a token at a time;
    `padding_side`: "left" or "right", where the step wants the padding of a prompt; `computed_anew`: one token beyond
    this length all of a text is computed anew, 0 for never; `weights_folder`: where weights lie that are not in here;
    `rules`: generation settings that change the likeliest token.
    """

    target: str
    step: str
    contract: Contract
    states: tuple[State, ...]
    mask: bool
    positions: bool
    one_by_one: bool
    weights: str
    eos: tuple[int, ...]
    pad: int
    vocabulary: int
    context_length: int
    files: tuple[str, ...] = ()
    padding_side: str = "left"
    computed_anew: int = 0
    kind: str = "text-generation"
    weights_folder: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it last: it names all files of the folder."""
        describe(folder, {**asdict(self), "states": [s.to_json() for s in self.states]})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder.

        Raises:
            CaptureError: the folder has none that this version reads.
        """
        said = described(folder)
        for entry in (FILES_ELSEWHERE, FINGERPRINTS):
            said.pop(entry, None)
        try:
            inside(folder, said["step"])
            said["states"] = tuple(State.of_json(s) for s in said["states"])
            names = said["contract"] = Contract(**said["contract"])
            sizes = {d for state in said["states"] for d in state.shape}
            if strange := [
                d for d in sizes if (d < 0 if isinstance(d, int) else d not in (names.batch, "1", names.past))
            ]:
                raise ValueError(f"a tensor has the size {strange[0]!r:.60}")
            return cls(**{**said, "eos": tuple(said["eos"]), "files": tuple(said["files"])})
        except UNSOUND as error:
            raise no_export(folder, error) from error

    def check(self, folder: Path, states: Sequence[Sequence[Any]]) -> None:
        """Compare what is remembered with the inputs that the step has for it, by their shapes.

        Raises:
            CaptureError: it has others, in number, in rank or in a fixed size.
        """
        found, said = ([[d if isinstance(d, int) else None for d in shape] for shape in shapes]
                       for shapes in (states, [s.shape for s in self.states]))  # fmt: skip
        if found != said:
            raise no_export(folder, ValueError(f"it does not describe {self.step}"))

    def facts(self) -> dict[str, str]:
        """What there is to say of the folder, for a table."""
        grows = [s for s in self.states if self.contract.past in s.shape]
        token = sum(math.prod(d for d in s.shape if isinstance(d, int)) * np.dtype(s.dtype).itemsize for s in grows)
        return {
            "vocabulary": f"{self.vocabulary:,}",
            "context": self._context(),
            "remembered": f"{len(self.states)} tensors, {size_text(token)} a token",
        }

    def _context(self) -> str:
        if not self.computed_anew or self.target == "eager":
            return f"{self.context_length:,} tokens"
        runtime = "onnxruntime-genai" if self.target == "onnx" else "tract"
        why = f"the model computes its keys anew (longrope), which {runtime} does not"
        if self.context_length == self.computed_anew:
            return f"{self.context_length:,} tokens; beyond them {why}"
        return f"{self.context_length:,} tokens, {self.computed_anew:,} in onnxruntime-genai; beyond those {why}"


def describe(folder: Path, said: dict[str, Any]) -> None:
    """Write what is in a folder, and the names and fingerprints of all its files."""
    known = {str(f.relative_to(folder)): _fingerprint(f) for f in sorted(folder.rglob("*")) if f.is_file()}
    whole = {"format": FORMAT, **said, "files": [*known, MANIFEST], FINGERPRINTS: known}
    (folder / MANIFEST).write_text(json.dumps(whole, indent=1))


def _fingerprint(file: Path) -> str:
    """The size of a file and a digest of its ends: whoever names it in a description has seen it.

    Raises:
        OSError: it is no plain file, or cannot be read.
    """
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        digest = hashlib.sha256(stream.read(_END))
        stream.seek(max(size - _END, 0))
        digest.update(stream.read(_END))
    return f"{size}:{digest.hexdigest()}"


def _is_of(file: Path, fingerprint: object) -> bool:
    with contextlib.suppress(OSError):
        return _fingerprint(file) == fingerprint
    return False


def described(folder: Path) -> dict[str, Any]:
    """What `describe` wrote.

    Raises:
        CaptureError: the folder has no description that this version reads.
    """
    try:
        with opened(folder / MANIFEST) as file:
            if os.fstat(file.fileno()).st_size > _LONGEST:
                raise ValueError(f"it has more than {_LONGEST} bytes")
            said: dict[str, Any] = json.load(file, parse_int=_integer)
        if said.pop("format") != FORMAT:
            raise ValueError("another format")
        said.setdefault("kind", "text-generation")
        if not isinstance(said["kind"], str):
            raise TypeError(f"kind is {said['kind']!r:.60}")
        return said
    except UNSOUND as error:
        raise no_export(folder, error) from error


def _integer(digits: str) -> int:
    """Of JSON; no runtime has larger numbers than these.

    Raises:
        ValueError: it has more than 63 bits.
    """
    number = int(digits)
    if number.bit_length() > 63:
        raise ValueError(f"the number {digits:.30}")
    return number


def load_call(folder: Path, way: str) -> str:
    """The call that opens a folder; `way` leads from it to weights that are not in there."""
    return f"language_models.load({str(folder)!r}" + (f", checkpoint={str(folder / way)!r})" if way else ")")


def check_files(folder: Path) -> None:
    """Refuse a folder with what runtimes would wait for.

    Raises:
        CaptureError: it holds a pipe or a device.
    """
    try:
        name = strange(folder)
    except (OSError, ValueError) as error:
        raise no_export(folder, error) from error
    if name:
        raise no_export(folder, ValueError(f"{name:.100} in it is neither a file nor a folder"))


def inside(folder: Path, name: object) -> Path:
    """The place in a folder that one of its files names; ValueError where that lies outside."""
    place = folder / str(name)
    if not place.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{str(name)!r:.60} lies outside of the folder")
    return place


def no_export(folder: Path, error: Exception) -> CaptureError:
    """What to raise for a description that cannot be read."""
    return CaptureError(f"{folder!s:.200} is no folder of language_models.export: {MANIFEST} ({error!s:.300})")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `path` when the block ends without an error."""
    with staged(path, check_place) as temporary:
        temporary.mkdir()
        yield temporary


def check_place(path: Path) -> None:
    """Refuse what an export may not replace.

    Raises:
        OutputError: there is something that is no older export.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise OutputError(f"{path} is a file or a link and stays as it is: give the path of a folder")
    if not path.is_dir() or not any(path.iterdir()):
        return
    try:
        known = described(path).get(FINGERPRINTS)
    except CaptureError:
        raise OutputError(f"{path} is not an export of ours and stays as it is: choose another folder") from None
    if not isinstance(known, dict):
        raise OutputError(f"{path} does not say what its files hold and stays as it is: choose another folder")
    owned = {path / name for name in (*known, MANIFEST)}
    folders = {folder for file in owned for folder in file.parents}
    for entry in path.rglob("*"):
        kind = entry.lstat().st_mode  # a link under a name of ours is somebody's, too
        ours = owned if stat.S_ISREG(kind) else folders if stat.S_ISDIR(kind) else ()
        if entry not in ours:
            raise OutputError(f"{path} holds {entry.name}, which no export wrote, and stays as it is: move it away")
        if entry in owned and entry != path / MANIFEST and not _is_of(entry, known[str(entry.relative_to(path))]):
            raise OutputError(f"{path} holds {entry.name}, changed since its export, and stays as it is: move it away")
