"""What a handler raised, told with its line and the model's; and what it cannot do with a size."""

from __future__ import annotations

import traceback

from ir.dims import Expr
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
