"""What stopped a run: tract names one of its nodes, or the kind of operation in which it died."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ir.opened import Place
from nnef_backend.building.reshaping import GUARD
from nnef_backend.format.document import Document, Fragment, Operation

_NAMED = re.compile(r'(?:Evaluating #\d+|Plugging in assignement for) "([^"]+)"')  # tract's own spelling
_UNLIKE = re.compile(r"([^\n:]+) should be equal to ([^\n]+)")
_DIED = re.compile(r"tract died .* in tract_\w+::ops::(?:\w+::)*(\w+):")
_GUARD_NAME = re.compile(rf".*_{GUARD}(_\d+)*")
_FEW = 3  # operations of one kind, of which one may be meant


class Failures:
    """The operations of a document, by the names of what they make."""

    def __init__(self, artifact: Document) -> None:
        self._operations = [o for f in artifact.fragments if isinstance(f, Fragment) for o in f.operations]
        self._operations += artifact.operations
        self._by_name = {name: o for o in self._operations for name in o.results}

    def unmet_requirement(self, error: Exception) -> str:
        """What did not hold in a run that was made to stop, and where it was asked; "" for any other failure."""
        made = self._by_name.get(_named(error, self._by_name))
        return made.requirement if made is not None else ""

    def unlike_sizes(self, error: Exception) -> str:
        """Which sizes tract cannot tell to be one, and where; "" for any other failure."""
        found = _UNLIKE.search(str(error))
        if found is None or not re.search("[A-Za-z]", found[1] + found[2]):  # two numbers are a fault of the document
            return ""
        sizes = f"that the sizes {found[1].strip()} and {found[2].strip()} are one"
        return f"tract cannot tell {sizes}; capture the model with one of them fixed{self.places(error)}"

    def places(self, error: Exception) -> str:
        """Lines that say where in the model the failure may be, one of few."""
        made = self._by_name.get(_named(error, self._by_name))
        found = [made] if made is not None else _of_kind(error, self._operations)
        return _lines([o.place for o in found if o.place is not None])


def told_of_file(error: Exception, places: Mapping[str, Place]) -> str:
    """The same of a file, which holds names, and what its comments tell of them."""
    named = _NAMED.search(str(error))
    place = places.get(_named(error, places))
    where = _lines([place] if place is not None else [])
    if named is None or not _GUARD_NAME.fullmatch(named[1]):
        return where
    what = "what the model asks of its inputs, or its graph of their sizes, does not hold"
    return f"\n  {named[1]} stops the run: {what}{where}"


def _named(error: Exception, names: Mapping[str, object]) -> str:
    """The name in the document: tract puts numbers behind it, and the name of what calls a fragment before it."""
    found = _NAMED.search(str(error))
    inner = found[1] if found else ""
    while inner:
        name = inner
        while name and name not in names:
            name, _, number = name.rpartition("_")
            name = name if number.isdigit() else ""
        if name:
            return name
        inner = inner.partition("_")[2]
    return ""


def _of_kind(error: Exception, operations: Iterable[Operation]) -> list[Operation]:
    """The operations of the kind in which tract died, if they are few."""
    died = _DIED.search(str(error))
    words = re.findall("[A-Z][a-z0-9]*", died[1]) if died else []
    kind = "_".join(words).lower()
    found = [o for o in operations if kind and o.name.removeprefix("tract_core_") == kind]
    return found if len({o.place for o in found}) <= _FEW else []


def _lines(places: Sequence[Place]) -> str:
    told = (
        f"\n  in {p.op or p.name}" + (f" at {p.source}" if p.source else "") + (f"  in {p.module}" if p.module else "")
        for p in places
    )
    return "".join(dict.fromkeys(told))
