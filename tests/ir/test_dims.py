"""Dimension expressions: canonical form, exact division, evaluation."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from ir import dims
from ir.bounds import Range, bounds, never_negative
from ir.dims import Expr, ceildiv, evaluate, floordiv, maximum, minimum, mod, quotient, solve, substitute, symbol

s, b = symbol("s"), symbol("b")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (2 * s + 1, "2*s + 1"),
        ((2 * s + 1) // 2, "s"),
        ((s + 3) // 2, "((s + 1)//2) + 1"),
        ((4 * s + 6) // 4, "s + 1"),
        (s * b // s, "b"),
        ((2 * s + 3) % 2, "1"),
        ((s * b + b) // (s + 1), "b"),
        (s - s, "0"),
        (maximum(1, s, s + 2), "max(1, s + 2)"),
        (minimum(s, s - 1), "s - 1"),
        (-s + 4, "-s + 4"),
    ],
)
def test_canonical_text(expr, text):
    assert str(expr) == text


def test_equality_is_provable_equality():
    assert (s + 1) * b == b + b * s and hash((s + 1) * b) == hash(b * s + b)
    assert s != b and s + 1 != s
    with pytest.raises(TypeError, match="run time"):
        bool(s)


def test_random_expressions_evaluate_like_python():
    rng = random.Random(0)

    def make(depth):
        if depth == 0:
            return rng.choice([(s, "s"), (b, "b"), *((n, str(n)) for n in (1, 2, 3, 5))])
        left, right = make(depth - 1), make(depth - 1)
        op = rng.choice(["+", "-", "*", "//", "%"])
        value = right[0]
        if op in "//%" and not isinstance(value, Expr) and value <= 0:
            op = "+"
        table = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "//": floordiv, "%": mod}
        return table[op](left[0], right[0]), f"({left[1]} {op} {right[1]})"

    for _ in range(400):
        expr, text = make(3)
        for env in ({"s": 1, "b": 2}, {"s": 7, "b": 3}, {"s": 12, "b": 5}):
            try:
                expected = eval(text, {}, env)
                got = evaluate(expr, env)
            except ZeroDivisionError:
                continue
            assert got == expected, (text, str(expr), env)


def test_quotient_solve_substitute():
    assert quotient(6 * s, 4) is None and quotient(6 * s, 3) == 2 * s
    assert solve(3 * s - 2, "s") == (3, -2) and solve(s * s, "s") is None and solve(s // 2, "s") is None
    assert substitute(s // 2 + b, {"s": 2 * b}) == 2 * b
    assert evaluate(ceildiv(s, 4), {"s": 9}) == 3
    real = dims.symbol("f", "float")
    assert substitute(real * s, {"s": 2}) == real * 2 and substitute(real * s, {"s": 2}).kind == "float"


def test_floats_and_truth_values_are_calls():
    scaled = dims.call("floor", dims.call("mul", s, 0.5))
    assert evaluate(scaled, {"s": 5}) == 2 and scaled.symbols == {"s"}
    assert dims.call("gt", s, 3).kind == "bool" and dims.call("truediv", s, 2).kind == "float"


@pytest.mark.parametrize(
    ("expr", "least", "most"),
    [
        (7, 7, 7),
        (s - 3, 0, 5),
        (s // 4, 0, 2),
        ((s - 1) // 2 + 1, 2, 4),
        (s * b, 3, math.inf),
        (maximum(s, b), 3, math.inf),
        (minimum(s, b), 1, 8),
        (s % 5, 0, 4),
        (s - b, -math.inf, 7),
        (b // s, 0, math.inf),
        (symbol("unknown"), -math.inf, math.inf),
        (dims.call("pow", s, 2), -math.inf, math.inf),
    ],
)
def test_bounds(expr, least, most):
    assert bounds(expr, {"s": Range(3, 8), "b": Range(1, None)}) == (least, most)


@pytest.mark.parametrize(
    ("expr", "known"),
    [
        (s - minimum(4, s), True),
        (s - (s + 1) // 2, True),
        ((s + 1) // 2 - s // 2, True),
        (b - minimum(s // 2, b), True),
        (maximum(4, s) - s, True),
        (s // 2 - (s + 1) // 2, False),
        (s - maximum(4, s), False),
    ],
)
def test_never_negative(expr, known):
    assert never_negative(expr, {"s": Range(), "b": Range()}) is known


def test_never_negative_holds_for_every_value():
    draw, proved = random.Random(0), 0

    def made(depth):
        if depth == 0:
            return draw.choice([s, b, draw.randint(-3, 5)])
        x, y = made(depth - 1), made(depth - 1)
        by = draw.randint(1, 4)
        return draw.choice([x + y, x - y, by * x, minimum(x, y), maximum(x, y), floordiv(x, by)])

    for _ in range(2000):
        x = made(draw.randint(1, 3))
        if never_negative(x, {"s": Range(), "b": Range()}):
            proved += 1
            assert all(evaluate(x, {"s": n, "b": m}) >= 0 for n, m in itertools.product(range(7), range(7))), x
    assert proved > 500


def test_bounds_contain_every_value():
    rng = random.Random(0)
    for _ in range(300):
        x: Any = s
        for _ in range(4):
            other = rng.choice([s, b, rng.randint(-3, 4)])
            step = rng.choice(["add", "sub", "mul", "floordiv", "mod", "max", "min"])
            if step in ("floordiv", "mod") and (not isinstance(other, int) or other < 1):
                continue
            x = dims.EXACT.get(step, dims.FUNCTIONS[step])(x, other)
        ranges = {"s": Range(0, 5), "b": Range(1, 4)}
        least, most = bounds(x, ranges)
        for env in ({"s": i, "b": j} for i in range(6) for j in range(1, 5)):
            assert least <= evaluate(x, env) <= most, (x, env)


def test_division_is_python_s_at_every_value():
    s, t = symbol("s"), symbol("t")
    for a, b, c in itertools.product((-4, 1, 6), (0, 1, 3), (-5, 0, 7)):
        size = a * s + b * t + c
        for by in (2, 3, -2, -3, t * t + 1, -s - 1):
            made = (dims.floordiv(size, by), dims.mod(size, by), dims.ceildiv(size, by))
            for at in ({"s": x, "t": y} for x in (0, 1, 2, 5) for y in (0, 1, 4)):
                n, d = dims.evaluate(size, at), dims.evaluate(by, at)
                assert [dims.evaluate(m, at) for m in made] == [n // d, n % d, -(-n // d)], (size, by, at)
