"""Hand-written fragments: where they come from, what they need, and which of them a document must hold.

Fragments are found by name: those of the target's option `fragments`, then those that `add_fragments` registered at
run time, as a package does for its handlers when it is imported.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ir.errors import DuplicateHandlerError
from ir.files import opened
from ir.registry import put
from nnef_backend.building.operators import EXTENSIONS, OPERATORS, Operator, extension_of
from nnef_backend.errors import DocumentError, PathError
from nnef_backend.format.grammar import MAX_BYTES, Call, Definition, fragments_of

Source: TypeAlias = "str | os.PathLike[str]"

MAX_EXPANDED = 1 << 14  # operations of one call, which tract expands: so many take it 3 s

# Operations that tract's own table lacks here, since no handler emits them; fragments may.
STANDARD = frozenset({
    "area_downsample", "max_unpool", "argmax_pool", "sample", "desample", "local_response_normalization",
    "local_mean_normalization", "local_variance_normalization", "local_contrast_normalization", "separable_conv",
    "separable_deconv", "rcp", "gelu",
})  # fmt: skip

_REGISTERED: dict[str, Definition] = {}


def read(source: Source) -> list[Definition]:
    """The fragments of a .nnef file, or of a text (a string that holds a brace).

    Raises:
        DocumentError: a mistake in the text, with file and line.
        PathError: the file cannot be read.
    """
    if isinstance(source, str) and "{" in source:
        return fragments_of(source)
    try:
        with opened(source) as file:
            content = file.read(MAX_BYTES + 1)
        return fragments_of(content.decode(), os.fspath(source))
    except UnicodeDecodeError as error:
        raise DocumentError(f"{source!s:.200}: fragments are text in UTF-8") from error
    except PathError:
        raise
    except OSError as error:
        raise PathError(f"the fragments {source!s:.200} cannot be read: {error.strerror or error}") from error


def add_fragments(*sources: Source, override: bool = False) -> list[str]:
    """Register fragments, from files or texts, for every document; gives their names.

    A handler calls one with `h.emit(name, ..)`; a document holds those that were called and those that they call.

    Raises:
        DocumentError: a mistake in the text, with file and line, or the name of one of NNEF's operations.
        DuplicateHandlerError: the name is registered already and `override` is False.
    """
    found = [definition for source in sources for definition in read(source)]
    for new in found:
        check_name(new)
        old = _REGISTERED.get(new.name)
        if old is not None and old.text != new.text and not override:
            raise DuplicateHandlerError(
                f"the fragment {new.name} of {new.place} is registered from {old.place} already; override=True replaces"
            )
    for new in found:
        put(_REGISTERED, new.name, new)
    return [new.name for new in found]


def remove_fragment(name: str) -> None:
    """Take a registered fragment out."""
    _REGISTERED.pop(name, None)


def own(sources: Iterable[Source]) -> Mapping[str, Definition]:
    """The fragments that a target is given, by name; raises as `add_fragments`."""
    found: dict[str, Definition] = {}
    for definition in (d for source in sources for d in read(source)):
        check_name(definition)
        if definition.name in found:
            raise DuplicateHandlerError(
                f"the fragment {definition.name} is given by {found[definition.name].place} and {definition.place}"
            )
        found[definition.name] = definition
    return found


def check_name(definition: Definition) -> None:
    """A fragment of an operation's name would replace that operation wherever else the document uses it."""
    if definition.name in OPERATORS or definition.name in STANDARD:
        raise DocumentError(f"{definition.place}: {definition.name} is the name of an operation; choose another")


def find(name: str, given: Mapping[str, Definition]) -> Definition | None:
    """The fragment of this name, the target's own first, or None."""
    return given.get(name) or _REGISTERED.get(name)


def needed(definition: Definition, given: Mapping[str, Definition]) -> list[Definition]:
    """A fragment and those it calls, each once, the called ones first.

    Raises:
        DocumentError: a call of something that is neither an operation nor a fragment, or of one of these with
            arguments that it does not take, a fragment that calls itself, or calls that make too many operations; with
            file and line.
    """
    order: dict[str, Definition] = {}
    sizes: dict[str, int] = {}

    def visit(current: Definition, path: tuple[str, ...]) -> None:
        for call in current.calls:
            called = find(call.name, given)
            if called is None:
                _check_operation(current, call, given)
                continue
            if called.name in (*path, current.name):
                raise DocumentError(f"{_line(current, call)}: {call.name} calls itself; NNEF has no recursion")
            _check_arguments(current, call, tuple(p[0] for p in called.parameters), len(called.parameters))
            if called.name not in order:
                visit(called, (*path, current.name))
        order[current.name] = current
        sizes[current.name] = sum(sizes.get(call.name, 1) for call in current.calls)
        if sizes[current.name] > MAX_EXPANDED:
            what = f"a call of {current.name} becomes {sizes[current.name]} operations, for tract expands every call"
            raise DocumentError(f"{current.place}: {what}; {MAX_EXPANDED} are the most")

    visit(definition, ())
    return list(order.values())


def operators_of(definition: Definition) -> list[tuple[Call, Operator]]:
    """The operations of the table that a fragment calls itself."""
    return [(call, OPERATORS[call.name]) for call in definition.calls if call.name in OPERATORS]


def extensions_of(definition: Definition) -> set[str]:
    """The extensions of tract that a fragment's operations need, and those that its file names."""
    return {*definition.extensions, *(e for call in definition.calls if (e := extension_of(call.name)))}


def names(given: Mapping[str, Definition]) -> set[str]:
    """Every name that a fragment of somebody's bears."""
    return {*given, *_REGISTERED}


def _check_operation(owner: Definition, call: Call, given: Mapping[str, Definition]) -> None:
    operator = OPERATORS.get(call.name)
    if operator is not None:
        parameters = (*operator.positional, *operator.named)
        if call.positional + len(call.named) > len(parameters):
            raise DocumentError(f"{_line(owner, call)}: {call.name} takes {', '.join(parameters)} and no more")
        return
    if call.name in STANDARD or call.name.startswith(tuple(EXTENSIONS)):
        return
    known = {*OPERATORS, *STANDARD, *names(given)}
    near = difflib.get_close_matches(call.name, known, n=3, cutoff=0.6)
    hint = f"; near to it: {', '.join(near)}" if near else ""
    raise DocumentError(f"{_line(owner, call)}: {call.name} is neither an operation nor a known fragment{hint}")


def _check_arguments(owner: Definition, call: Call, names: tuple[str, ...], most: int) -> None:
    unknown = [n for n in call.named if n not in names]
    if unknown or call.positional + len(call.named) > most:
        what = f"no parameter {unknown[0]}" if unknown else f"{most} parameters at most"
        raise DocumentError(f"{_line(owner, call)}: {call.name} has {what}; there are {', '.join(names)}")


def _line(owner: Definition, call: Call) -> str:
    return f"{owner.place.rpartition(':')[0]}:{call.line}"
