"""Handlers with a fault planted in them, around a target's own: what the debugger's tests find again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ir

Change = Callable[[dict[str, Any]], Mapping[str, Any]]


def wrapped(target: str, op: str, change: Change | None = None, result: Any = None, only: str = "") -> dict[str, Any]:
    """A handler for `op` that calls the target's own, with `change` of the arguments or `result(h, made)` of results.

    `only` names a value of the one node that has the fault; every node of the op otherwise.
    """
    chosen = ir.plugins.find_target(target, {})

    def handler(h: Any, **arguments: Any) -> Any:
        original = chosen.registry.lookup(op.partition(".")[0], h.node.overload, chosen.version)
        faulty = not only or only in {v.name for v in h.node.outputs}
        given = change(arguments) if change and faulty else arguments
        named = {p.name: v for k, v in given.items() if (p := original.parameter(k)) is not None}
        made = original.fn(h, **(given if original.takes_all else named))
        return result(h, made) if result and faulty else made

    return {op: handler}
