"""Constants that a choice or a slice gives back: tract finds them, and so must what asks whether a value is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ir.geometry import broadcast
from nnef_backend.building.hiding import maker
from nnef_backend.building.steps import NnefValue, leaves


def constant_chosen(h: Any, condition: Any, one: Any, other: Any) -> Any:
    """The constant that a choice between it and itself gives, or one of floats by the same side all over; None of any
    other choice."""
    if h.is_value(one) and one is other and one.fixed:  # tract may know the condition
        return h.expand(one, broadcast(condition.type.shape, one.type.shape))
    content = _one_number(h, condition)
    if content is None:
        return None
    chosen, left = (one, other) if content else (other, one)
    values = [x for x in (one, other) if h.is_value(x)]
    if not _is_constant(h, chosen) or not h.is_value(left) or left.fixed or not left.type.dtype.is_float:
        return None
    chosen = chosen if h.is_value(chosen) else h.const(chosen, left.type.dtype)
    return h.expand(chosen, broadcast(condition.type.shape, *(x.type.shape for x in values)))


def constant_part(h: Any, x: Any, attributes: Mapping[str, Any]) -> Any:
    """The slice of a constant that lies in a concatenation with others; None where it is none."""
    made = maker(h, x)
    ends = [attributes.get(k) for k in ("axes", "begin", "end")]
    if made is None or made.op not in ("concat", "stack") or any(not _one_int(e) for e in ends):
        return None
    (axis,), (begin,), (end,) = ends  # type: ignore[misc]
    first = 0
    for part in leaves(made.inputs) if axis == made.attributes["axis"] else ():
        part = part if made.op == "concat" else h.unsqueeze(part, [axis]) if part.fixed else part
        size = part.type.shape[axis] if made.op == "concat" else 1
        if not isinstance(size, int):
            return None
        if first <= begin < end <= first + size:
            within = {**attributes, "begin": [begin - first], "end": [end - first]}
            whole = end - begin == size and not attributes.get("stride")
            return None if not part.fixed else part if whole else h.emit("slice", part, **within)
        first += size
    return None


def _one_int(given: Sequence[Any] | None) -> bool:
    return given is not None and len(given) == 1 and type(given[0]) is int


def _is_constant(h: Any, x: Any) -> bool:
    return x.fixed if h.is_value(x) else isinstance(x, int | float)


def _one_number(h: Any, x: Any) -> Any:
    """What a constant holds all over, in any arrangement; None where that is not known."""
    content = h.content(x.origin) if isinstance(x, NnefValue) and 0 not in x.type.shape else None
    if content is None or not content.size or not bool((content == content.flat[0]).all()):
        return None
    return content.flat[0]
