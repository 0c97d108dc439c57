"""The shapes of results, from the shapes of the operands and the named parameters; one small rule an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ir.dims import Dim
from ir.geometry import broadcast, unsqueezed

Shape = Sequence[Dim]
Result = "Sequence[Dim] | list[Sequence[Dim]]"


def infer(rule: str, shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """The shape of the result (a list of shapes for an operation with several results), or None."""
    if not shapes or any(s is None for s in shapes):
        return None
    return _RULES[rule](shapes, given, inputs) if rule in _RULES else None


def _reduce(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> Shape:
    return [1 if i in given["axes"] else s for i, s in enumerate(shapes[0])]


def _unsqueeze(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> Shape:
    return unsqueezed(shapes[0], given["axes"])


def _concat(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> Shape:
    total: Dim = sum((s[given["axis"]] for s in shapes), 0)
    return [total if i == given["axis"] else s for i, s in enumerate(shapes[0])]


def _stack(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> Shape:
    shape = list(shapes[0])
    shape.insert(given["axis"], len(shapes))
    return shape


def _unstack(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> list[Shape]:
    shape = [s for i, s in enumerate(shapes[0]) if i != given["axis"]]
    count = shapes[0][given["axis"]]
    assert isinstance(count, int)
    return [shape] * count


def _slice(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> Shape | None:
    if any(s != 1 for s in given.get("stride", [])):
        return None
    shape = list(shapes[0])
    for a, begin, end in zip(given["axes"], given["begin"], given["end"], strict=True):
        if hasattr(begin, "type") or hasattr(end, "type"):
            return None
        shape[a] = end - begin
    return shape


def _matmul(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> Shape:
    x, y = shapes
    rows = x[-1 if given.get("transposeA") else -2]
    columns = y[-2 if given.get("transposeB") else -1]
    return [*broadcast(x[:-2], y[:-2]), rows, columns]


def _topk(shapes: Sequence[Shape], given: Mapping[str, Any], inputs: Any) -> list[Shape]:
    shape = [inputs[1] if i == given["axis"] else s for i, s in enumerate(shapes[0])]
    return [shape, shape]


_RULES: Mapping[str, Callable[[Sequence[Shape], Mapping[str, Any], Any], Any]] = {
    "like": lambda s, given, inputs: s[0],
    "second": lambda s, given, inputs: s[1],
    "broadcast": lambda s, given, inputs: broadcast(*s),
    "reduce": _reduce,
    "unsqueeze": _unsqueeze,
    "squeeze": lambda s, given, inputs: [d for i, d in enumerate(s[0]) if i not in given["axes"]],
    "transpose": lambda s, given, inputs: [s[0][a] for a in given["axes"]],
    "concat": _concat,
    "stack": _stack,
    "unstack": _unstack,
    "slice": _slice,
    "tile": lambda s, given, inputs: [d * r for d, r in zip(s[0], given["repeats"], strict=True)],
    "pad": lambda s, given, inputs: [d + p[0] + p[1] for d, p in zip(s[0], given["padding"], strict=True)],
    "gather": lambda s, given, inputs: [*s[0][: given["axis"]], *s[1], *s[0][given["axis"] + 1 :]],
    "matmul": _matmul,
    "topk": _topk,
}
