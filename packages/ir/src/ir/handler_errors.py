"""What a handler raised, told with its line and the model's; and what it cannot do with a size."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from ir.dims import Dim, Expr, Symbol
from ir.errors import ExportError, HandlerError
from ir.graph import Node, Origin
from ir.helper import Refusal, refusal_text
from ir.registry import Handler, place_of


def handler_error(handler: Handler, node: Node, error: BaseException) -> HandlerError:
    """What a handler raised, with the op, the handler's line and the model's."""
    place = place_of(handler.fn)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{f.filename}:{f.lineno}" for f in frames if f.filename == place.rpartition(":")[0]]
    what = f"{type(error).__name__}: {error!s:.2000}".rstrip(": ")
    where = f"the handler of {node.overload} at {[place, *own][-1]}"
    return HandlerError.of(error, f"{where} failed with {what}\n  at {node.origin}")


def for_a_size(target: str, handler: Handler, node: Node, error: BaseException) -> Refusal | None:
    """The refusal of a built-in handler that failed on a size where it takes a number; None for any other error."""
    sizes = [f"{name}={arg}" for name, arg in node.args.items() if isinstance(arg, Expr)]
    if handler.layer != "builtin" or not isinstance(error, TypeError) or not sizes:
        return None
    reason = f"its handler takes a number, and not a size: {', '.join(sizes)} ({handler.source}: {error})"
    return Refusal(refusal_text(target, node, reason))


def place_in_body(error: ExportError, node: Node) -> None:
    """Say where the model has the node that is meant by an error about its body, whose nodes have no source line."""
    nowhere, text = f"\n  at {Origin()}", str(error)
    if nowhere in text and node.origin.file:
        error.args = (f"{text.replace(nowhere, '')}\n  in the body of {node.overload}\n  at {node.origin}",)


def other_sizes(made: Sequence[Dim], wanted: Sequence[Dim]) -> bool:
    """True of shapes that are the same at single sizes at most, where one can tell; -1 is a size that is not known.

    A user's handler is held to that. The rules for a backend's own may find a size in another form than torch does,
    as may those for two operands whose sizes are equal at run time: only a gap in one symbol tells of a mistake.

    >>> from ir.dims import minimum, symbol; n, m = symbol("n"), symbol("m")
    >>> other_sizes([2 * n, 3], [n, 3]), other_sizes([1, 3], [n, 3])
    (True, True)
    >>> other_sizes([-1, 3], [n, 3]), other_sizes([minimum(n, 8)], [n]), other_sizes([m], [n])
    (False, False, False)
    """
    if len(made) != len(wanted):
        return True
    gaps = [a - b for a, b in zip(made, wanted, strict=True) if a != -1]
    return any(gap != 0 and (isinstance(gap, int) or _is_of_one_symbol(gap)) for gap in gaps)


def _is_of_one_symbol(size: Expr) -> bool:
    """True of a polynomial in one symbol, without functions, which has one form."""
    atoms = {atom for monomial, _ in size.terms for atom, _ in monomial}
    return len(atoms) == 1 and all(isinstance(atom, Symbol) for atom in atoms)
