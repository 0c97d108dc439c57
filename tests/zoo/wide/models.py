"""Every model of the second zoo by name."""

from __future__ import annotations

from ..entry import Entry, Model
from . import paper_images, paper_sequences, paper_sets, sound, text, timm_rows, torchvision_rows, vision

_FAMILIES = (text, vision, sound, timm_rows, torchvision_rows, paper_images, paper_sequences, paper_sets)
_ENTRIES: dict[str, Entry] = {name: made for family in _FAMILIES for name, made in family.ENTRIES.items()}

NAMES: tuple[str, ...] = tuple(_ENTRIES)


def get(name: str) -> Model:
    """The model of that name."""
    return _ENTRIES[name](True)
