"""Powers of integers, which wrap around in torch: onnxruntime's Pow goes by way of float64, where nothing wraps."""

from __future__ import annotations

from typing import Any


def of_integers(h: Any, base: Any, exponent: Any) -> Any:
    """The power of two integer tensors. A negative power is 0, but of 1 and -1."""
    value = _by_bits(h, base, h.emit("Abs", exponent))
    if h.out.dtype.kind == "uint":
        return value
    gone = h.emit("Less", exponent, 0)
    if base.array is None or abs(base.array.item()) == 1:
        gone = h.emit("And", gone, h.emit("Not", h.emit("Equal", h.emit("Abs", base), 1)))
    return h.emit("Where", gone, h.const(0, value), value)


def _by_bits(h: Any, base: Any, exponent: Any) -> Any:
    """By squaring, a bit of the exponent at a time."""
    start = h.full(h.out.shape, 1, h.out.dtype)

    def step(_: Any, result: Any, base: Any, rest: Any) -> list[Any]:
        odd = h.emit("Equal", h.emit("Mod", rest, 2), 1)
        new = h.emit("Where", odd, h.emit("Mul", result, base), result)
        return [h.emit(*parts) for parts in (("Identity", new), ("Mul", base, base), ("Div", rest, 2))]

    return h.loop(h.out.dtype.bits, [start, *(h.expand(x, h.out.shape) for x in (base, exponent))], step)[0]


def repeated(h: Any, base: Any, exponent: int) -> Any:
    """The power of an integer tensor by a number that is not negative, by squaring."""
    result = None
    while exponent:
        if exponent % 2:
            result = base if result is None else h.emit("Mul", result, base)
        exponent //= 2
        base = h.emit("Mul", base, base) if exponent else base
    return h.full(h.out.shape, 1, h.out.dtype) if result is None else result
