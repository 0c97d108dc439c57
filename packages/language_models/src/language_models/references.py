"""Weights that stay in a checkpoint's files: what these files were when they were referred to, and where they lie now.

A model says of such a weight in which bytes of which file it lies, and no more: in a file that is laid out in another
way, or is another model's, a runtime reads other numbers without a word. So the description of a folder has the size of
each file and a digest of its header, which says what lies where. Other weights of the same layout are not told apart:
that would be to read all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import onnx_ir

from ir.errors import CaptureError
from ir.files import opened
from ir.stored import HEADER_LIMIT, linked_shards
from language_models.folder import FILES_ELSEWHERE, MANIFEST, described, no_export

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's config entry


def note_files(folder: Path, weights: Path) -> None:
    """Put into the description of a folder what the files are that its models refer to; `weights` is where they lie."""
    names = {name for model in folder.glob("*.onnx") for name in _locations(model)}
    said = json.loads((folder / MANIFEST).read_text())
    said[FILES_ELSEWHERE] = {name: _known(weights / name) for name in sorted(names) if (weights / name).is_file()}
    (folder / MANIFEST).write_text(json.dumps(said, indent=1))


def _locations(model: Path) -> set[str]:
    """The files that weights of a model lie in."""
    held = [v.const_value for graph in onnx_ir.load(model).graphs() for v in graph.initializers.values()]
    return {str(tensor.location) for tensor in held if isinstance(tensor, onnx_ir.ExternalTensor)}


def _known(file: Path) -> dict[str, int | str]:
    """What tells a .safetensors file from others: its size, and a digest of its header, none where that is no header.

    Raises:
        CaptureError: it cannot be read.
    """
    try:
        with opened(file) as stream:
            total = os.fstat(stream.fileno()).st_size
            first = stream.read(8)
            size = int.from_bytes(first, "little")
            header = stream.read(size) if size <= min(HEADER_LIMIT, total) else b""
    except OSError as error:
        raise CaptureError(f"{file} cannot be read: {error.strerror or error}") from error
    return {"bytes": total, "header": hashlib.sha256(first + header).hexdigest()}


def weights_elsewhere(folder: Path, way: str, checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """The folder in which weights really lie that are not in here, as the caller names it; None where all are in here.

    Args:
        way: what the description of the folder says, which nobody has to believe.

    Raises:
        CaptureError: the folder refers to weights, and `checkpoint` is not given, or has not the files of the export.
    """
    if way and checkpoint is None:
        raise CaptureError(
            f"{folder} refers to weights in another folder, {way}: where that is meant, load with "
            f"checkpoint={str(folder / way)!r}"
        )
    if checkpoint is None:
        return None
    wanted, given = described(folder).get(FILES_ELSEWHERE), Path(checkpoint)
    if not given.is_dir():
        raise CaptureError(f"checkpoint={str(given)!r:.300}: there is no such folder; give the one of the weights")
    if wanted is None:  # of a folder that was written before files were noted
        return linked_shards(given).folder
    if not isinstance(wanted, dict) or not all(isinstance(said, dict) for said in wanted.values()):
        raise no_export(folder, TypeError(f"{FILES_ELSEWHERE} is {wanted!r:.60}"))
    return _checked(folder, wanted, given)


def _checked(folder: Path, wanted: Mapping[str, Mapping[str, object]], given: Path) -> Path:
    """The folder in which the files of the export lie; links, as a cache of Hugging Face has them, are followed."""
    way = f"give the checkpoint that {folder} was exported from by checkpoint=, or export it again"
    there = {place.name: place for entry in sorted(given.iterdir()) if (place := entry.resolve()).is_file()}
    if lost := sorted(wanted.keys() - there.keys()):
        raise CaptureError(f"{given} holds no file {lost[0]!r:.100}, in which weights of {folder} lie: {way}")
    for name, said in wanted.items():
        found = _known(there[name])
        if found != said:
            sizes = f"{found['bytes']:,} bytes, not {said.get('bytes')!s:.20}"
            why = sizes if found["bytes"] != said.get("bytes") else "its tensors lie in other places, or are others"
            raise CaptureError(f"{there[name]} is not the file that {folder} refers to ({why}): {way}")
    folders = sorted({there[name].parent for name in wanted})
    if len(folders) > 1:
        raise CaptureError(f"{given} holds links to files in {len(folders)} folders: give the one that they all lie in")
    return folders[0] if folders else given
