"""Size arithmetic as torch writes it, against torch's own evaluation: random expressions at many values."""

from __future__ import annotations

import math
import random
from collections import namedtuple

import pytest
import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

import ir
from ir import dims
from ir.bounds import Range
from ir.importer.symbols import Symbols

EXACT = {  # of integers
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: 10 - a,
    "mul": lambda a, b: a * b,
    "neg": lambda a, b: -a,
    "pow": lambda a, b: a**2,
    "half": lambda a, b: a // 2,
    "floordiv": lambda a, b: a // (b * b + 1),
    "negative_floordiv": lambda a, b: a // -3,
    "parts_floordiv": lambda a, b: (6 * a + b + 7) // 3,
    "negative_parts_floordiv": lambda a, b: (6 * a + b + 7) // -3,
    "number_floordiv": lambda a, b: 17 // (b * b + 1),
    "ceildiv": lambda a, b: -(-a // 3),
    "mod": lambda a, b: a % 4,
    "negative_mod": lambda a, b: a % -3,
    "mod_by": lambda a, b: a % (b * b + 2),
    "max": lambda a, b: torch.sym_max(a, b),
    "min": lambda a, b: torch.sym_min(a, b),
    "abs": lambda a, b: abs(a - 5),
    "sum": lambda a, b: torch.sym_sum([a, b, 3]),
    "where": lambda a, b: torch.sym_ite(a > b, a, b * 2),
    "where_not": lambda a, b: torch.sym_ite(torch.sym_not(a == b), a + 1, b),
    "where_and": lambda a, b: torch.sym_ite((a > 1) & (b <= 5), a, b),
    "where_or": lambda a, b: torch.sym_ite((a >= 3) | (b < 2), a, b),
    "where_differs": lambda a, b: torch.sym_ite(a != 3, a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "left": lambda a, b: a << 2,
    "right": lambda a, b: a >> 1,
}
ROUNDED = {  # floats in between
    "floor": lambda a, b: math.floor(a / 3),
    "ceil": lambda a, b: math.ceil(a / 4),
    "floor_by": lambda a, b: math.floor(a / (b * b + 1)),
    "floor_scaled": lambda a, b: math.floor(a * 1.5),
    "ceil_scaled": lambda a, b: math.ceil(a * 0.3),
    "trunc_scaled": lambda a, b: math.trunc(a * 0.75),
    "round": lambda a, b: round(a / 4),
    "round_scaled": lambda a, b: round(a * 1.5),
    "root": lambda a, b: math.floor(torch.sym_sqrt(a * a + 1)),
    "power": lambda a, b: math.floor(torch.sym_float(a * a) ** 0.5),
    "product": lambda a, b: math.floor(torch.sym_float(a) * torch.sym_float(b) / 4),
    "decimal": lambda a, b: math.floor(round(a * 0.37, 1) * 10),
    "log2": lambda a, b: math.floor(torch._sym_log2(torch.sym_float(a * a + 2)) * 3),
}
RULES = EXACT | ROUNDED
VALUES = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 3), (3, 2), (5, 7), (7, 5), (10, 4), (4, 11), (12, 12)]


def sizes():
    env = ShapeEnv()
    made = []
    for name, hint in (("a", 7), ("b", 9)):
        source = ConstantSource(name)
        symbol = env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        made.append(env.create_symintnode(symbol, hint=hint, source=source))
    return env, made


def check(steps):
    """Build the expression of these (rule, operand, operand) and compare its values."""
    env, values = sizes()
    a, b = (s.node.expr for s in values)
    symbols = Symbols()
    for s, name in zip(values, "ab", strict=True):
        symbols.name_user_symbol(s, name)
    try:
        for rule, i, j in steps:
            values.append(RULES[rule](values[i], values[j]))
    except AssertionError:  # torch's own: its Mod is of what is not negative
        return 0
    size = values[-1]
    if not isinstance(size, torch.SymInt) or env.guards:  # torch took a branch: the expression holds on one side
        return 0
    ours = symbols.convert(size)
    for x, y in VALUES:
        try:
            theirs = int(size.node.expr.xreplace({a: sympy.Integer(x), b: sympy.Integer(y)}))
        except AssertionError:
            continue
        got = dims.evaluate(ours, {"a": x, "b": y})
        assert got == theirs and type(got) is int, f"{size.node.expr} -> {ours}: {got} at {x, y}, torch has {theirs}"
        assert dims.substitute(ours, {"a": x, "b": y}) == theirs
    return 1


@pytest.mark.parametrize("rule", RULES)
def test_each_rule(rule):
    assert check([(rule, 0, 1)]) and check([(rule, 1, 0)])
    check([("rsub", 0, 1), (rule, 2, 1)])  # of what may be negative


def test_random_expressions():
    draw = random.Random(0)
    compared = 0
    for _ in range(80):
        steps = [
            (draw.choice(list(RULES)), draw.randrange(i), draw.choice([i - 1, draw.randrange(i)])) for i in (2, 3, 4)
        ]
        compared += check(steps)
    assert compared > 50


def test_a_name_that_the_user_gave_to_another_symbol_is_not_given():
    s0, s1, s2 = sympy.symbols("s0 s1 s2", positive=True, integer=True)
    symbols = Symbols({s0: None, s1: None, s2: None})
    symbols.rename({"s0": "length"})
    symbols.suggest({"s0": "width", "s1": "length", "s2": "width"})
    assert symbols.names == {s0: "length", s2: "width"}


def test_two_sizes_that_have_one_name_in_a_file_have_one():
    s0, s1 = sympy.symbols("s0 s1", positive=True, integer=True)
    symbols = Symbols({s0: None, s1: None})
    symbols.suggest({"s0": "length", "s1": "length"})
    assert symbols.names == {s0: "length", s1: "length"}


@pytest.mark.parametrize("size", [Dim("b", max=2), Dim("b", min=1, max=2), Dim.DYNAMIC(max=2)])
def test_a_range_that_torch_export_takes_for_one_size(size):
    """At 1 the program would be the one for 2, with no condition that says so."""
    with pytest.raises(ir.CaptureError, match=r"up to 2, which torch\.export takes to be 2 always: give a max of 3"):
        ir.capture(lambda x: x * 2 if x.size(0) == 2 else x, (torch.ones(2, 3),), dynamic_shapes=({0: size},))


def test_shapes_of_a_named_tuple():
    pair, rows = namedtuple("Pair", "a b"), Dim("rows")
    args = (pair(torch.ones(2, 3), torch.ones(2, 3)),)
    graph = ir.capture(lambda p: p.a + p.b, args, dynamic_shapes=(pair({0: rows}, {0: rows}),))
    assert [str(v.type) for v in graph.inputs] == ["f32[rows, 3]"] * 2


A = Dim("a", min=3, max=9)
DERIVED = {  # sizes of the arguments, what is said of them, the types in the graph, the range of its symbol
    "a Dim and one less": ((5, 4), (A, A - 1), ["f32[a_minus_1 + 1]", "f32[a_minus_1]"], (2, 8)),
    "one less alone": ((4,), (A - 1,), ["f32[a_minus_1]"], (2, 8)),
    "one more alone": ((5,), (A + 1,), ["f32[a + 1]"], (3, 9)),
    "a multiple": ((16,), (8 * Dim("n"),), ["f32[8*n]"], (0, None)),
    "a multiple from 2": ((16,), (8 * Dim("n", min=2, max=9),), ["f32[8*n]"], (2, 9)),
    "a line": ((9,), (2 * Dim("n", max=7) + 3,), ["f32[2*n + 3]"], (0, 7)),
    "a Dim and its double": ((4, 8), (Dim("n", max=7), 2 * Dim("n", max=7)), ["f32[n]", "f32[2*n]"], (0, 7)),
    "a name that is another's": ((5, 4, 7), (A, A - 1, "a_minus_1"), ["f32[s0 + 1]", "f32[s0]"], (2, 8)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_sizes_that_are_computed_from_a_dim(name):
    sizes, dims, types, ends = DERIVED[name]
    args = tuple(torch.randn(n) for n in sizes)
    shapes = ({0: d} for d in dims)
    graph = ir.capture(lambda *xs: [x * 2 for x in xs], args, dynamic_shapes=tuple(shapes))
    assert [str(v.type) for v in graph.inputs][: len(types)] == types
    symbol = next(iter(graph.inputs[0].type.shape[0].symbols))
    assert graph.symbols[symbol] == Range(*ends)


def test_a_dim_without_an_end_that_another_is_computed_from():
    a = Dim("a", min=3)
    args, shapes = (torch.randn(5), torch.randn(4)), ({0: a}, {0: a - 1})
    with pytest.raises(ir.CaptureError, match=r"with the greatest .*\n.*torch\.export\.Dim\(name, min=\.\.\., max="):
        ir.capture(lambda x, y: x[1:] + y, args, dynamic_shapes=shapes)


def test_an_argument_that_is_resized_in_place():
    def model(x):
        return x.resize_(2, 2)

    with pytest.raises(ir.CaptureError, match=r"another number of axes in place\n +at .*test_symbols.py:\d+.*resize_"):
        ir.capture(model, (torch.randn(4),))


NOW, LATER = torch.export.Dim("b", min=3, max=9), torch.export.Dim("b", min=4, max=9)
EXISTING = {  # how the program was exported, what is said of it afterwards, and what it then says
    "a fixed size": (
        None,
        "n",
        r"the axis 0 of \w+ is 4 in the program: dynamic_shapes only names .* give it to torch",
    ),
    "a fixed size and a Dim": (None, NOW, r"is 4 in the program"),
    "a fixed size and Dim.DYNAMIC": (None, torch.export.Dim.DYNAMIC, r"is 4 in the program"),
    "another range": (NOW, LATER, r"is from 3 to 9 in the program, and b is to be in another range"),
    "the same range": (NOW, torch.export.Dim("n", min=3, max=9), ""),
    "a name": (NOW, "n", ""),
    "a Dim without a range": (NOW, torch.export.Dim("n"), ""),
    "a fixed size that stays so": (None, torch.export.Dim.AUTO, ""),
}


@pytest.mark.parametrize("kind", ["program", "file"])
@pytest.mark.parametrize("name", EXISTING)
def test_dynamic_shapes_of_a_program_that_exists(name, kind, tmp_path):
    before, after, told = EXISTING[name]
    source = torch.export.export(torch.nn.Linear(4, 3), (torch.randn(4, 4),), dynamic_shapes=({0: before},))
    if kind == "file":
        torch.export.save(source, tmp_path / "m.pt2")
        source = tmp_path / "m.pt2"
    if not told:
        graph = ir.capture(source, dynamic_shapes=({0: after},))
        assert str(graph.inputs[0].type) == ("f32[4, 4]" if before is None else "f32[n, 4]")
        return
    for args in ((), (torch.randn(4, 4),)):
        with pytest.raises(ir.CaptureError, match=told):
            ir.capture(source, args, dynamic_shapes=({0: after},))
