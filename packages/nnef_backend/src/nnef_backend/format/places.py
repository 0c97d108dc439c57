"""Where the operations of a document come from: comments behind them, `# relu = aten::relu in 0.act at model.py:12`."""

from __future__ import annotations

import re

from ir.opened import Place

_NOTED = re.compile(
    r"^ *(?P<results>[^=;#]*[^=;# ]) *=[^\n]*; *"
    r"# (?P<name>\S+) = (?P<op>\S+?::\S+)(?: in (?P<module>\S+))?(?: at (?P<source>.+))?$",
    re.MULTILINE,
)


def comment(place: Place) -> str:
    """The comment of an operation."""
    module, source = (f" {word} {text}" if text else "" for word, text in (("in", place.module), ("at", place.source)))
    return f"{place.name} = {place.op}{module}{source}"


def places(text: str) -> dict[str, Place]:
    """The places that a document's comments tell, by the names of what operations make."""
    found: dict[str, Place] = {}
    for noted in _NOTED.finditer(text):
        made = Place(*(noted[part] or "" for part in ("name", "op", "module", "source")))
        found |= dict.fromkeys(re.findall(r"\w+", noted["results"]), made)
    return found
