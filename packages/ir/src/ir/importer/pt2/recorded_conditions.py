"""What a capture recorded of sizes, in a .pt2 file: torch's format has the conditions, and not who asked for them.

They lie in a record of their own beside it. A file without one may hold conditions of either kind: see
`ir.importer.file_guards`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ir.dims import symbol
from ir.errors import CaptureError
from ir.importer.guards import Branch, RecordedConditions
from ir.importer.pt2.archive import Archive
from ir.importer.pt2.expressions import Size, parse
from ir.importer.size_rules import symbol_kind
from ir.importer.torch_api import guards_code

EXTRA = "ir_conditions.json"  # of torch.export.save's extra_files
_RECORD = f"extra/{EXTRA}"
_LARGEST, _LONGEST = 1 << 24, 2000
_NO_CONDITIONS = "its conditions on sizes are no conditions"


def packed(program: Any, recorded: RecordedConditions | None) -> dict[str, str]:
    """The extra files of torch.export.save for what was recorded of this program; none where that is nothing."""
    if recorded is None or not (guards_code(program) or recorded.from_two):
        return {}
    own = {"branches": _texts(recorded.branches), "asked": _texts(recorded.asked), "from_two": list(recorded.from_two)}
    return {EXTRA: json.dumps(own)}


def with_branches(records: Mapping[str, str], branches: Sequence[Branch]) -> dict[str, str]:
    """The extra files `records`, with these conditions besides."""
    own = json.loads(records[EXTRA]) if EXTRA in records else {"branches": [], "asked": [], "from_two": []}
    return {**records, EXTRA: json.dumps(own | {"branches": [*own["branches"], *_texts(branches)]})}


def unpacked(text: str | bytes) -> RecordedConditions:
    """What `packed` wrote.

    Raises:
        CaptureError: the record holds something else.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaptureError("its conditions on sizes are no JSON") from error
    if not isinstance(found, dict) or found.keys() != {"branches", "asked", "from_two"}:
        raise CaptureError(_NO_CONDITIONS)
    from_two = found["from_two"]
    if not isinstance(from_two, list) or not all(isinstance(s, str) for s in from_two):
        raise CaptureError(_NO_CONDITIONS)
    return RecordedConditions(_branches(found["branches"]), _branches(found["asked"]), from_two)


def recorded_in(archive: Archive) -> RecordedConditions | None:
    """What was recorded of the program in a file; None if the file does not say.

    Raises:
        CaptureError: the record holds something else.
    """
    if not archive.has(_RECORD):
        return None
    if archive.size(_RECORD) > _LARGEST:
        raise CaptureError(f"its conditions on sizes are larger than {_LARGEST} bytes")
    return unpacked(bytes(archive.view(_RECORD)))


def _texts(branches: Sequence[Branch]) -> list[list[str]]:
    """Each that the reader takes: what it does not, the graph has no check for either."""
    texts = []
    for branch in branches:
        text = _text(branch.condition)
        try:
            parse(text).value(lambda name: symbol(name, symbol_kind(name)))
        except CaptureError:
            continue
        texts.append([text, branch.place[:_LONGEST]])
    return texts


def _text(condition: Any) -> str:
    """As torch writes sizes."""
    import sympy

    return condition.text if isinstance(condition, Size) else str(sympy.srepr(condition))


def _branches(found: Any) -> list[Branch]:
    if not isinstance(found, list) or not all(_is_branch(b) for b in found):
        raise CaptureError(_NO_CONDITIONS)
    for text, _ in found:
        parse(text)
    return [Branch(Size(text), place) for text, place in found]


def _is_branch(found: Any) -> bool:
    texts = isinstance(found, list) and len(found) == 2 and all(isinstance(t, str) for t in found)
    return texts and len(found[1]) <= _LONGEST
