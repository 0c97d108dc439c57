"""Operands in forms that tract does not see through while it loads: what it would make of them is something else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ir.dims import Dim, Expr, minimum, quotient
from ir.geometry import broadcast
from ir.types import DType
from nnef_backend.building.alike import repeated, together
from nnef_backend.building.operators import CONTRACTIONS, MULTIPLIED, REARRANGEMENTS, SEEN_THROUGH
from nnef_backend.building.sizes import hides
from nnef_backend.building.steps import NnefValue, Step, leaves, map_values


def hide(h: Any, x: Any) -> Any:
    """`x`, less a zero that tract finds out when it runs.

    Each constant gets another zero. Those that tract computes may come out equal; hidden by one zero they would be
    equal nodes again, and tract fails where it merges two products of such nodes ("eval() called on a Dummy op").
    """
    if x.type.dtype is DType.bool:
        return h.emit("tract_core_xor", x, _never(h))
    zero = h.cast(_never(h), x.type.dtype)
    if x.fixed:
        known = h.scope.zeros.setdefault(x.type.dtype, {})
        if x.name not in known:
            known[x.name] = h.emit("add", next(reversed(known.values())), zero) if known else zero
        zero = known[x.name]
    return h.emit("sub", x, zero)


def _never(h: Any) -> Any:
    """A `false` that tract finds out when it runs: an input's first number, if it has one, is not below itself."""
    first = next((x for x in h.inputs if 0 not in x.type.shape), h.inputs[0])
    first = h.cast(first, DType.int32) if first.type.dtype is DType.bool else first
    for axis, size in enumerate(first.type.shape):
        first = h.slice(first, axis, 0, minimum(size, 1))
    return h.reduce("any_reduce", h.emit("lt", first, first), None)


# -- products of what is repeated: tract takes the repetition out, and loses its size or its terms ---------------------


def solid(h: Any, op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """The operands of a contraction, made anew where tract would see through them; a batch may be repeated."""
    operands = list(leaves(inputs))
    if h.target.tract and op == "deconv" and _spreads_a_product(h, *operands[:2]):
        return [hide(h, inputs[0]), *inputs[1:]]
    if h.target.tract and len(operands) == 1 and _merges_repeated(h, operands[0]):
        return map_values(list(inputs), lambda x: hide(h, x))
    partly = {id(x): _partly_repeated(h, x) for x in operands} if h.target.tract else {}
    if not h.target.tract or not any(x.repeated or partly[id(x)] or _joins_repeated(h, x) for x in operands):
        return list(inputs)
    terms = attributes.get("expr", "...").partition("->")[0].split(",")

    def harmless(x: Any, axis: int) -> bool:
        if op == "matmul":
            others = [(y, axis) for y in operands if y is not x]
            batch = axis < x.type.rank - 2
        else:
            letter = terms[operands.index(x)][axis] if op == "tract_core_einsum" else ""
            others = [(y, t.index(letter)) for y, t in zip(operands, terms, strict=False) if y is not x and letter in t]
            batch = bool(letter) and letter in attributes["expr"].partition("->")[2]
        return batch and any(a not in y.repeated and y.type.shape[a] == x.type.shape[axis] for y, a in others)

    def made(x: Any) -> Any:
        if not isinstance(x, NnefValue):
            return x
        through = _joins_repeated(h, x) or not all(harmless(x, a) for a in x.repeated | partly.get(id(x), frozenset()))
        return hide(h, x) if through else x

    return map_values(list(inputs), made)


def _joins_repeated(h: Any, x: Any) -> bool:
    """True of a join with a part that is repeated, or is such a join: tract makes one contraction of each part."""
    made = maker(h, x.origin)
    joined = leaves(made.inputs) if made is not None and made.op in ("concat", "stack") else ()
    return any(part.repeated or _partly_repeated(h, part) or _joins_repeated(h, part) for part in joined)


def _merges_repeated(h: Any, x: Any) -> bool:
    """True of a reshape of what is repeated along a part of an axis: a sum that tract moves before it loses that."""
    made = maker(h, x)
    return made is not None and made.op == "reshape" and any(part.repeated for part in leaves(made.inputs))


def _partly_repeated(h: Any, x: Any, known: dict[int, frozenset[int]] | None = None) -> frozenset[int]:
    """The axes that a reshape made of a repeated axis and others, wherever they are moved behind it.

    tract moves a contraction over them before the reshape, where it has lost the repeated size, and does not load.
    """
    known = {} if known is None else known
    if id(x) not in known:
        known[id(x)] = _followed(h, x, known)
    return known[id(x)]


def _followed(h: Any, x: Any, known: dict[int, frozenset[int]]) -> frozenset[int]:
    made = maker(h, x)
    sources = [] if made is None else list(leaves(made.inputs))
    if made is None or not sources:
        return frozenset()
    if made.op in MULTIPLIED:
        return together([(s.type.shape, _partly_repeated(h, s, known)) for s in sources], x.type.shape)
    if made.op not in SEEN_THROUGH:
        return frozenset()
    source = sources[0]
    before = _partly_repeated(h, source, known)
    if made.op != "reshape":
        return repeated(made.op, source.type.shape, before, x.type.shape, made.attributes)
    first, count = made.attributes.get("axis_start", 0), made.attributes.get("axis_count", source.type.rank)
    grown, middle = x.type.rank - source.type.rank, range(first, first + count)
    found = {a if a < first else a + grown for a in before if a not in middle}
    if (before | source.repeated).intersection(middle):
        found.update(range(first, first + count + grown))
    return frozenset(found).difference(x.repeated)


_MOVED = frozenset({"transpose", "reshape", "squeeze", "unsqueeze"})


def unfused(h: Any, x: Any) -> Any:
    """`x` of f64, behind two operations that tract takes into no product: a cast it does, and then nothing is rounded.

    `(x @ y).float().double()` is `x @ y` to it; so it is behind sums and factors, which it computes in the product.
    """
    return h.emit("neg", h.emit("neg", x)) if _is_of_product(h, x) else x


def _is_of_product(h: Any, x: Any) -> bool:
    """True of a product of matrices or a convolution, and of what tract computes in one behind it."""
    left, met = [x], set()
    while left:
        made = maker(h, left.pop())
        if made is None or id(made) in met:
            continue
        met.add(id(made))
        if made.op in CONTRACTIONS:
            return True
        if made.op in REARRANGEMENTS or made.op in _FUSED or made.op in ("slice", "mul", "div"):
            left += leaves(made.inputs)
    return False


def _spreads_a_product(h: Any, x: Any, kernel: Any) -> bool:
    """True of a transposed convolution of a product by one number: a factor to tract, which it moves."""
    content = h.content(kernel.origin)  # in whatever arrangement
    one = content is not None and content.size > 0 and bool((content == content.flat[0]).all())
    return one and _is_of_product(h, x)


def as_laid_out(h: Any, rows: Any) -> Any:
    """The rows of a product with a weight in 4-bit blocks, hidden where a reshape joins axes that were transposed.

    tract moves both from the rows into the weight, whose blocks stay where they were: numbers meet others' weights.
    """
    moved, value = set(), rows
    while (made := maker(h, value)) is not None and made.op in _MOVED:
        moved.add(made.op)
        value = next(leaves(made.inputs))
    return hide(h, rows) if h.target.tract and moved >= {"transpose", "reshape"} else rows


def bare(h: Any, xs: Sequence[NnefValue]) -> list[NnefValue]:
    """Operands without the axes that stand before a number, where another operand has them.

    tract puts them there by itself, and of an operation that stands there with both it may remove both.
    """

    def number_in(x: NnefValue) -> NnefValue | None:
        made = maker(h, x)
        return made.inputs[0] if made is not None and made.op == "unsqueeze" and not made.inputs[0].type.rank else None

    found = [number_in(x) for x in xs]
    rank = max((x.type.rank for x, n in zip(xs, found, strict=True) if n is None), default=0)
    return [x if n is None or x.type.rank > rank else n for x, n in zip(xs, found, strict=True)]


def maker(h: Any, x: Any) -> Step | None:
    """The operation that a value is a result of; None for inputs, constants and weights."""
    return next((scope.makers[id(x)] for scope in h.scopes if id(x) in scope.makers), None)


_NEUTRAL = frozenset({"mul", "div", "pow", "and", "or", "select"})
_FUSED = frozenset({"add", "sub", "max", "min"})  # into a product before, by the one number of the other operand


def sized(h: Any, op: str, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands of an operation, those hidden that tract may take for neutral and leave out, and a size with them.

    A product with ones or a choice by what is true all over is, to tract, its other operand, also where that is smaller
    than the result. So is what it fuses, to a product of matrices or a convolution that is smaller.
    """
    if op not in _NEUTRAL | _FUSED or not h.target.tract or not h.inputs or all(x.fixed for x in operands):
        return operands
    if op in ("mul", "add"):
        operands = [hide(h, x) if _is_nothing_in_f32(h, x) else x for x in operands]
    if op in _FUSED and not all(x.type.rank for x in operands):  # to a number nothing is fused
        return operands
    chooses = op == "select" and operands[1].type.dtype.is_integer  # to zero all over, whose products tract takes for 0
    # or to an operand that is repeated to fill the result: to tract a product of it has the smaller size
    repeats = op == "select" and not chooses and _are_smaller(operands[1:], operands)

    def lost(i: int, x: Any) -> bool:
        others = [y for y in operands if y is not x]
        widens = any(s != 1 and all(y.type.rank <= a or y.type.shape[a] == 1 for y in others)
                     for a, s in enumerate(x.type.shape))  # fmt: skip
        if x.fixed and op == "mul" and any(_meets_beyond(h, x, y) for y in others):
            return True
        known_or_not = widens or (chooses and i == 0)
        if not x.fixed or not (known_or_not or (repeats and i == 0)):
            return False
        content = h.content(x.origin)  # in whatever arrangement
        one = all(s == 1 for s in x.type.shape)
        return known_or_not or one if content is None else content.size > 0 and bool((content == content.flat[0]).all())

    return [hide(h, x) if lost(i, x) else x for i, x in enumerate(operands)]


def _are_smaller(xs: Sequence[Any], operands: Sequence[Any]) -> bool:
    """True if one of these is repeated to fill the shape of the operands together."""
    whole = broadcast(*(x.type.shape for x in operands))
    return any(len(x.type.shape) < len(whole) or any(s == 1 != t for s, t in
               zip(x.type.shape, whole, strict=True)) for x in xs)  # fmt: skip


_FEW = 4096  # elements of which the products are looked at


def _meets_beyond(h: Any, factor: Any, product: Any) -> bool:
    """True if the product has a factor already that times this one is beyond the type: tract multiplies the two first,
    and `x * 1000 * 100` is infinite in f16 for all x."""
    made = maker(h, product)
    if made is None or made.op != "mul" or not factor.type.dtype.is_float or factor.type.dtype is DType.bfloat16:
        return False
    limits = np.finfo(factor.type.dtype.name)
    least, most, ends = float(limits.tiny), float(limits.max), _ends(h, factor)
    for other in (_ends(h, x) for x in leaves(made.inputs) if x.fixed):
        if ends and other and (ends[0] * other[0] < least or ends[1] * other[1] > most):
            return True
    return False


def _is_nothing_in_f32(h: Any, x: Any) -> bool:
    """True of numbers of f64 that f32 does not tell from 0, for which tract takes them as factors and terms."""
    if not x.fixed or x.type.dtype is not DType.float64:
        return False
    ends = _ends(h, x)
    return ends is not None and ends[1] < 2.0**-149


def _ends(h: Any, x: Any) -> tuple[float, float] | None:
    """The least and the largest magnitude of what is not 0; None where that is not known, or too much to look at."""
    if any(isinstance(s, Expr) for s in x.type.shape) or math.prod(x.type.shape) > _FEW:
        return None
    content = h.content(x)
    if content is None:
        return None
    sizes = np.abs(np.asarray(content, np.float64))
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
    return (float(sizes.min()), float(sizes.max())) if sizes.size else None


def apart(h: Any, xs: Sequence[Any]) -> list[Any]:
    """The parts of a concatenation or a stack, those hidden that it has already.

    tract moves slices up to the parts, and fails where two come out alike ("eval() called on a Dummy op").
    """
    seen: Counter[int] = Counter()
    cut: dict[Any, NnefValue] = {}
    made = []
    for x in xs:
        if h.target.tract and h.inputs and not x.fixed:
            x = cut.setdefault((id(_uncut(h, x)), x.type.shape), x)  # of equal slices the first
            origin = id(x.origin)
            for _ in range(seen[origin]):  # each time once more: hidden alike they are alike again
                x = hide(h, x)
            seen[origin] += 1
        made.append(x)
    return made


def exchanged(h: Any, op: str, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands, the last hidden where the same operation stands here with its last two the other way round.

    Where tract finds that the two are one, the operations are one, too, and it fails where it merges them ("eval()
    called on a Dummy op"). So it is in `where(c, a, b) - where(c, b, a)` with an `a` and a `b` of two forms.
    """
    if len(operands) < 2 or not h.target.tract or not h.inputs:
        return operands
    *others, a, b = operands
    if a is b or a.fixed or b.fixed or a.type.shape != b.type.shape:
        return operands
    hidden = (op, *others, b, a) in h.scope.pairs
    h.scope.pairs.add((op, *operands))
    return [*others, a, hide(h, b)] if hidden else operands


def repeated_number(h: Any, x: NnefValue) -> NnefValue | None:
    """The number that `x` repeats: parts of `x` repeat it, too, and there is nothing for tract to move a slice to."""
    step = maker(h, x) if x.type.rank else None
    of_number = step is not None and step.op == "tract_core_broadcast" and not step.inputs[0].type.rank
    return step.inputs[0] if step is not None and of_number else None


def uncut(h: Any, x: NnefValue, axis: int) -> tuple[NnefValue, Sequence[int]]:
    """What `x` is cut from along an axis of equal elements, or what it is without its axes of size 1, and those."""
    step = maker(h, x)
    if step is not None and step.op == "slice" and list(step.attributes["axes"]) == [axis]:
        return step.inputs[0], ()
    if step is not None and step.op == "unsqueeze" and axis not in step.attributes["axes"]:
        return step.inputs[0], step.attributes["axes"]
    return x, ()


def _uncut(h: Any, x: NnefValue) -> NnefValue:
    """What a slice is cut from, where any other slice of that would be equal."""
    step = maker(h, x) if x.type.rank else None
    if step is None or step.op != "slice" or not step.inputs[0].alike.issuperset(step.attributes["axes"]):
        return x
    whole: NnefValue = step.inputs[0]
    return whole


# -- what is made of constants and sizes alone -------------------------------------------------------------------------


def opaque(h: Any, x: Any) -> Any:
    """The operand in a form that tract does not see through: it fails on repeated constants."""
    if not isinstance(x, NnefValue) or not x.fixed or x.type.is_static:
        return x
    axis = next(i for i, s in enumerate(x.type.shape) if isinstance(s, Expr))
    made = h.take(x, h.positions(x.type.shape[axis]), axis)
    made.fixed = False
    return made


def as_said(h: Any, op: str, x: Any, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """A result of windows with its sizes as the document says them, which tract makes of the windows by itself."""
    divided = [] if op == "deconv" else _divided(operands, attributes)
    for axis, size in enumerate(x.type.shape or ()):
        if hides(size, h.mixed) or (divided and isinstance(size, Expr) and _left_whole(*divided[axis])):
            x = h.emit("slice", x, axes=[axis], begin=[0], end=[size], shape=x.type.shape)
    return x


def _divided(operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[tuple[Dim, int]]:
    """For each axis what tract divides to count the windows, and by what."""
    sizes = operands[0].type.shape
    window = attributes.get("size") or [1, 1, *operands[1].type.shape[2:]]
    front = len(sizes) - len(attributes["stride"])  # a convolution says nothing of the batch and the channels
    steps, gaps = ([*[1] * front, *attributes[name]] for name in ("stride", "dilation"))
    pads = [*[(0, 0)] * front, *attributes["padding"]]
    return [(size + sum(pad) - gap * (width - 1) - 1 + step, step)
            for size, width, step, gap, pad in zip(sizes, window, steps, gaps, pads, strict=True)]  # fmt: skip


def _left_whole(dividend: Dim, by: int) -> bool:
    """Whether tract's quotient is not ours: of `(4*s + 3)/4` it takes out no s, and cannot prove that it is one."""
    terms = dividend.terms if isinstance(dividend, Expr) else ()
    return by > 1 and quotient(dividend, by) is None and any(m and c % by == 0 for m, c in terms)


def stretched(h: Any, operands: Sequence[Any]) -> list[Any]:
    """The operands, those repeated whose size is 1 or the number that another has: to tract the result is that number.

    Of `min(n, 2)` and 2 it makes `broadcast(2, min(n, 2))`, which is no number of channels.
    """
    if not h.target.tract:
        return list(operands)
    together = broadcast(*(x.type.shape for x in operands if x.type.rank))

    def whole(x: Any) -> Any:
        fixed = [t if isinstance(t, int) and t != 1 and isinstance(s, Expr) else s
                 for s, t in zip(x.type.shape, together, strict=False)]  # fmt: skip
        return x if list(x.type.shape) == fixed else h.emit("tract_core_broadcast", x, shape=fixed)

    return [whole(x) for x in operands]


def number(h: Any, x: Any) -> Any:
    """The operand as a number: tract follows sizes through arithmetic, and to it rounding leaves them alone."""
    if not isinstance(x, NnefValue) or not x.fixed or x.array is not None or not x.type.dtype.is_float:
        return x
    return h.emit("mul", h.emit("sign", x), h.emit("abs", x))
