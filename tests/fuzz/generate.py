"""Random programs. The same numbers make the same program: `program(seed, number)`."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

import torch

from tests.fuzz import schemas
from tests.fuzz.builder import Builder, Reject, Slots
from tests.fuzz.program import Input, Program

FAMILIES = {  # how often a step is of which kind: a file of templates, or one made otherwise
    "arithmetic": 22, "views": 16, "unary": 14, "writes": 13, "indexing": 12, "reductions": 12, "schemas": 10,
    "sizes": 9, "comparison": 8, "joins": 8, "arrangements": 8, "layers": 7, "casts": 6, "matmul": 6, "members": 6,
    "chain": 4,
}  # fmt: skip
TRIES = 400  # candidates for one program
DYNAMIC = ((), (), ("B",), ("B",), ("B",), ("B", "T"))
INPUT_DTYPES = ("float32", "float32", "float32", "float32", "float32", "int64", "int64", "int32", "bool", "float64",
                "float16", "bfloat16", "uint8", "int8", "int16")  # fmt: skip
FILLED = ("grid", "grid", "grid", "grid", "special", "ties", "positive")


def program(seed: str | int, number: int) -> Program:
    """The program of this number."""
    return generate(random.Random(f"{seed}/{number}"), f"{seed}/{number}")


@torch.no_grad()
def generate(r: random.Random, label: str = "") -> Program:
    """A program of 3 to 15 steps."""
    builder = Builder(_inputs(r), r)
    _buffers(builder)
    wanted = r.randint(3, 15)
    for _ in range(TRIES):
        if len(builder.steps) >= wanted:
            break
        try:
            _step(builder)
        except Reject:
            continue
    return Program(tuple(builder.inputs), tuple(builder.members), tuple(builder.steps), _result(builder), label)


def _inputs(r: random.Random) -> list[Input]:
    dynamic = list(r.choice(DYNAMIC))
    special = r.random() < 0.2
    found = []
    for k in range(r.choice((1, 1, 2, 2, 3))):
        rank = r.choice((0, 1, 2, 2, 2, 3, 3, 3, 4, 4))
        shape: list[int | str] = [r.choice((1, 2, 3, 3, 4, 5, 6)) for _ in range(rank)]
        if rank > 1 and r.random() < 0.15:  # square matrices, which keep their shape whichever way they are turned
            shape[-1] = shape[-2]
        if k and found and r.random() < 0.6:  # of the shape of an earlier one, or one that broadcasts with it
            shape = list(r.choice(found).shape)
            shape = shape[r.randint(0, len(shape)) :] if r.random() < 0.3 else shape
        else:
            for name in dynamic:
                if shape and r.random() < 0.8:
                    shape[0 if r.random() < 0.6 else r.randrange(len(shape))] = name
        values = r.choice(FILLED) if special else r.choice(("grid", "grid", "grid", "ties", "positive"))
        found.append(Input("xyz"[k], r.choice(INPUT_DTYPES), tuple(shape), values))
    return found


def _buffers(builder: Builder) -> None:
    """Now and then the module has a state that it may write to."""
    r = builder.random
    if r.random() < 0.35:
        text = r.choice(
            ("torch.zeros(3)", "torch.tensor(0)", "torch.arange(4.0)", "torch.ones(1, 3)", "torch.zeros(2, 3)",
             "torch.arange(6).reshape(2, 3)", "torch.zeros((), dtype=torch.float64)")
        )  # fmt: skip
        _name(builder, builder.member(text, "b"))
    if r.random() < 0.2:
        _name(builder, builder.member("torch.randn(3)", "w"))


def _name(builder: Builder, place: str) -> None:
    """A local name for the state: the very tensor."""
    name = place.rpartition(".")[2]
    for run in builder.runs:
        run[name] = getattr(run["self"], name)
    builder.steps.append(f"{name} = {place}")
    builder.values.append(name)


def _step(builder: Builder) -> None:
    family = builder.random.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    if family == "members":
        _member(builder)
    elif family == "schemas":
        builder.add(schemas.candidate(builder))
    elif family == "chain":  # two expressions in one line
        inner = Slots(builder).fill(builder.random.choice(templates("unary")))
        outer = builder.random.choice(templates("unary"))
        builder.add(re.sub(r"\{[tfn]\}", f"({inner})", outer))
    else:
        text = Slots(builder).fill(builder.random.choice(templates(family)))
        builder.add(text, write=family == "writes")


@cache
def templates(family: str) -> list[str]:
    """The lines of a family's file; `tests.fuzz.builder.Slots` says what stands in them."""
    return (Path(__file__).parent / "templates" / f"{family}.txt").read_text().splitlines()


def _member(builder: Builder) -> None:
    """A module of the model and a call of it: {M}; {C1} and {C-1} are sizes of the input that are static."""
    made, call = builder.random.choice(templates("members")).split(" -> ")
    slots = Slots(builder)
    text = slots.fill(call.replace("{M}", "MODULE"))
    for axis in (1, -1):
        if f"{{C{axis}}}" in made:
            value = builder.tensor(slots.first)
            if value.dim() <= max(axis, 0) or not builder.fixed(slots.first, axis) or not value.shape[axis]:
                raise Reject
            made = made.replace(f"{{C{axis}}}", str(value.shape[axis]))
    before = len(builder.members)
    place = builder.member(made)
    try:
        builder.add(text.replace("MODULE", place))
    except Reject:
        del builder.members[before:]
        raise


def _result(builder: Builder) -> str:
    """What is returned: the last value and some others, in one of the forms that models use."""
    r = builder.random
    unread = [v for v in builder.values if v not in builder.used] or builder.values[-1:]
    names = r.sample(unread, min(len(unread), r.choice((1, 2, 3, 4, 5))))
    if r.random() < 0.3:
        names.append(r.choice(builder.values))
    if builder.sizes and r.random() < 0.2:
        names.append(builder.sizes[-1])
    if r.random() < 0.06:
        names.append(names[0])
    first, rest = names[0], names[1:]
    form = r.randrange(9)
    if form == 0:
        return "{" + ", ".join(f'"{k}": {n}' for k, n in zip(("out", "x", "logits", "a.b", "v1"), names)) + "}"
    if form == 1:
        return f"Pair({first}, {rest[0] if rest else None})"
    if form == 2:
        return f"Named({first}, [{', '.join(rest)}])"
    if form == 3:
        return f"({first}, None, {{'rest': [{', '.join(rest)}]}})"
    if form == 4:
        return f"[{', '.join(names)}]"
    return first if not rest else f"({', '.join(names)})"
