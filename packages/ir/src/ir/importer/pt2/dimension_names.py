"""The names of dimensions in a .pt2 file: torch's format has none, so they lie in a record of their own beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ir.errors import CaptureError
from ir.importer.pt2.archive import Archive

EXTRA = "ir_dimensions.json"  # of torch.export.save's extra_files
_RECORD = f"extra/{EXTRA}"
_LARGEST = 1 << 20
_NAME = re.compile(r"[^\W\d]\w{0,99}")


def packed(names: Mapping[object, str]) -> dict[str, str]:
    """The extra files of torch.export.save for these names of torch's symbols."""
    own = {str(s): name for s, name in names.items() if _NAME.fullmatch(name)}
    return {EXTRA: json.dumps(own, sort_keys=True)} if own else {}


def dimension_names(archive: Archive) -> dict[str, str]:
    """What a file calls torch's symbols.

    Raises:
        CaptureError: the record holds something else.
    """
    if not archive.has(_RECORD):
        return {}
    if archive.size(_RECORD) > _LARGEST:
        raise CaptureError(f"its names of dimensions are larger than {_LARGEST} bytes")
    try:
        found = json.loads(bytes(archive.view(_RECORD)))
    except ValueError as error:
        raise CaptureError("its names of dimensions are no JSON") from error
    if not isinstance(found, dict) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in found.values()):
        raise CaptureError("its names of dimensions are no names")
    return found
