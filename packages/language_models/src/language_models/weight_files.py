"""Which files of a folder hold its weights: those that transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import utils

from ir.errors import CaptureError
from ir.stored import chosen


def named_file(config: Any) -> Any:
    """The file that a configuration names itself, which goes before those of the usual names; None without one."""
    return getattr(config, "transformers_weights", None)


def stored_file(folder: Path, config: Any) -> Path | None:
    """The .safetensors file or index that transformers reads; None where it reads others."""
    return None if named_file(config) else chosen(folder)


def check_weights(folder: Path, config: Any) -> None:
    """Refuse a folder in whose files transformers finds no weights: others than it reads may be anything (ema, fp16).

    Raises:
        CaptureError: there is none of the usual names.
    """
    names = utils.SAFE_WEIGHTS_NAME, utils.SAFE_WEIGHTS_INDEX_NAME, utils.WEIGHTS_NAME, utils.WEIGHTS_INDEX_NAME
    if named_file(config) or any((folder / name).is_file() for name in names):
        return
    others = sorted(file.name for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind))
    raise CaptureError(
        f"{folder}: transformers reads weights from {', '.join(names[:-1])} or {names[-1]}, and there is none of them, "
        f"but {others[0]:.100}: rename the file that is meant, or download the whole checkpoint"
    )
