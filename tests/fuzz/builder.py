"""Grows a program step by step: a step is kept if torch's eager run takes it at the sizes that the program runs at.

Every candidate is executed as it is drawn, at all sizes side by side. So nothing here knows what an op demands of its
arguments, and a value's shape at several sizes tells which of its dimensions are dynamic.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.program import Input, Program

LARGEST, DEEPEST = 600, 5  # elements and rank of a value


class Reject(Exception):
    """This candidate does not fit; another one is drawn."""


class Builder:
    """The program so far, run at every size."""

    def __init__(self, inputs: list[Input], r: random.Random) -> None:
        self.random = r
        self.inputs = inputs
        self.members: list[str] = []
        self.steps: list[str] = []
        self.values: list[str] = []
        self.sizes: list[str] = []
        self.used: set[str] = set()  # values that a later step reads
        self.special = any(i.values == "special" for i in inputs)
        self._count = 0
        plan = Program(tuple(inputs), (), (), "None")
        self.runs: list[dict[str, Any]] = []
        for sizes in plan.all_sizes():
            run: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "self": torch.nn.Module(), "sizes": sizes}
            exec("import math", run)
            run.update(zip((i.name for i in inputs), plan.args(sizes), strict=True))
            self.runs.append(run)
        self.values += [i.name for i in inputs]

    # -- what is there -------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> Tensor:
        found: Tensor = self.runs[0][name]
        return found

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """The value's shape at each size."""
        return [tuple(run[name].shape) for run in self.runs]

    def fixed(self, name: str, axis: int) -> bool:
        """True if the size of this axis is the same at every size of the program."""
        return len({s[axis] if -len(s) <= axis < len(s) else None for s in self.shapes(name)}) == 1

    def choose(self, where: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A value; one that nothing reads yet is more likely."""
        return self._pick([v for v in self.values if where(self.tensor(v))])

    def like(self, first: str, where: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A value that broadcasts with `first` at every size; `first` itself where there is no other."""

        def fits(v: str) -> bool:
            pairs = zip(self.shapes(first), self.shapes(v), strict=True)
            return where(self.tensor(v)) and all(_broadcast(a, b) for a, b in pairs)

        return self._pick([v for v in self.values if fits(v)])

    def same(self, first: str, where: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A value of the same shape at every size."""
        return self._pick([v for v in self.values if self.shapes(v) == self.shapes(first) and where(self.tensor(v))])

    def _pick(self, fitting: list[str]) -> str:
        if not fitting:
            raise Reject
        return self.random.choices(fitting, [1 if v in self.used else 3 for v in fitting])[0]

    def finite(self, name: str) -> bool:
        """True if the value holds no nan and no infinity at any size."""
        return all(not t.is_floating_point() or bool(t.isfinite().all()) for t in (run[name] for run in self.runs))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def member(self, expression: str, kind: str = "m") -> str:
        """A module, parameter or buffer of the model (kind "m", "w" or "b"): what the steps call it."""
        name = f"{kind}{len(self.members)}"
        line = f"self.{name} = {expression}"
        if kind == "b":
            line = f'self.register_buffer("{name}", {expression})'
        elif kind == "w":
            line = f"self.{name} = torch.nn.Parameter({expression})"
        try:
            for run in self.runs:
                exec(line, run)
                if kind == "m":
                    getattr(run["self"], name).eval()
        except Exception as error:
            raise Reject from error
        self.members.append(line)
        return f"self.{name}"

    def add(self, candidate: str, write: bool = False) -> None:
        """Run the candidate at every size and keep it: an expression whose results are new values, or a statement.

        Raises:
            Reject: torch refuses it at the traced size; or at another, but for a few.
        """
        lenient = write or self.random.random() < 0.15
        results, kept = [], []
        compiled = compile(candidate, "<candidate>", "exec" if write else "eval")
        for run in self.runs:
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results.append(eval(compiled, run))
                kept.append(run)
            except Exception as error:
                if run["sizes"] == self.runs[0]["sizes"] or not lenient:
                    raise Reject from error
        if not write and len({_kind(r) for r in results}) != 1:
            raise Reject
        self.used |= set(re.findall(r"\b[a-z]\d*\b", candidate))
        if write:
            self.runs = kept
            self.steps.append(candidate)
            return
        self._keep(candidate, results, kept)

    def _keep(self, candidate: str, results: list[Any], kept: list[dict[str, Any]]) -> None:
        kind = _kind(results[0])
        if kind == "":
            raise Reject
        if kind == "size":
            names, self.runs = [self._name("n")], kept
            self.sizes += names
        else:
            names, self.runs = [self._name("v") for _ in range(int(kind))], kept
            self.values += names
        for run, result in zip(kept, results, strict=True):
            parts = result if isinstance(result, (tuple, list)) else [result]
            run.update(zip(names, parts, strict=True))
        comma = "," if isinstance(results[0], (tuple, list)) and len(names) == 1 else ""
        self.steps.append(f"{', '.join(names)}{comma} = {candidate}")

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b)))


def _kind(result: Any) -> str:
    """How many tensors a result is, "size" for an int, "" for what no later step can use."""
    if isinstance(result, bool) or result is None:
        return ""
    if isinstance(result, int):
        return "size" if abs(result) < 1000 else ""
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    if not parts or len(parts) > 8 or not all(isinstance(p, Tensor) and _usable(p) for p in parts):
        return ""
    return str(len(parts))


def _usable(t: Tensor) -> bool:
    return (
        t.numel() <= LARGEST
        and t.dim() <= DEEPEST
        and not t.is_complex()
        and not t.is_quantized
        and t.layout is torch.strided
    )


# -- templates ---------------------------------------------------------------------------------------------------------

SCALARS = ("0", "1", "2", "-1", "3", "0.5", "-1.5", "2.0", "0.25", "1e-3", "True", "0.0", "-2", "7", "-0.75")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
DTYPE_WEIGHTS = (8, 3, 2, 2, 5, 3, 1, 1, 2, 2)


def is_float(t: Tensor) -> bool:
    return t.is_floating_point()


def is_index(t: Tensor) -> bool:
    return t.dtype is torch.int64


def is_integer(t: Tensor) -> bool:
    return not t.is_floating_point() and t.dtype is not torch.bool


def is_bool(t: Tensor) -> bool:
    return t.dtype is torch.bool


KINDS: dict[str, Callable[[Tensor], bool]] = {
    "t": lambda t: True,
    "f": is_float,
    "i": is_integer,
    "j": is_index,
    "m": is_bool,
    "n": lambda t: t.dtype is not torch.bool,
    "q": lambda t: t.dtype is not torch.bool and t.dim() > 1 and t.shape[-1] == t.shape[-2],
}


class Slots:
    """What the slots of one template stand for; a slot that occurs twice stands for the same thing.

    {t} a tensor, {f} floating, {i} integer, {j} int64, {m} bool, {n} no bool, {q} of square matrices and no bool;
    with a rank: {f3}, {f3+} for at least 3, and
    with "~" one that broadcasts with the first tensor, with "=" one of its shape, with "!" a finite one. {d} {e}
    dimensions of the first tensor, {D} {E} their sizes, {dims} some, {perm} all of them, {k} 0 to 3, {z} -3 to 3, {N} a
    size, {s} a Python number, {p} a positive one, {B} a bool, {dt} an element type.
    """

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self.known: dict[str, str] = {}
        self.first = ""

    def fill(self, template: str) -> str:
        return re.sub(r"\{([^{}'\":, ]+)\}", lambda m: self.get(m[1]), template)

    def get(self, key: str) -> str:
        if key not in self.known:
            self.known[key] = self.draw(key)
        return self.known[key]

    def draw(self, key: str) -> str:
        r, rank = self.b.random, self.b.tensor(self.first).dim() if self.first else 0
        if key in ("d", "e"):
            return str(self._axis(key, rank))
        if key in ("D", "E"):
            return f"{self.first}.shape[{self.get(key.lower())}]"
        if key in ("dims", "perm"):
            axes = r.sample(range(rank), rank if key == "perm" else r.randint(min(1, rank), rank))
            return (
                f"({', '.join(str(a - rank if r.random() < 0.3 else a) for a in axes)}{',' if len(axes) == 1 else ''})"
            )
        if key[0] == "k" or key[0] == "z":
            return str(r.randint(0 if key[0] == "k" else -3, 3))
        if key[0] == "N":
            return r.choice(self.b.sizes) if self.b.sizes and r.random() < 0.6 else str(r.randint(1, 6))
        if key[0] == "s":
            return r.choice(SCALARS)
        if key[0] == "p":
            return r.choice(("0.5", "1.0", "2.0", "3.5", "1e-5"))
        if key[0] == "B":
            return r.choice(("True", "False"))
        if key[:2] == "dt":
            return "torch." + r.choices(DTYPES, DTYPE_WEIGHTS)[0]
        return self._tensor(key)

    def _axis(self, key: str, rank: int) -> int:
        other = self.known.get("e" if key == "d" else "d")
        free = [a for a in range(rank) if other is None or a != int(other) % rank]
        if not free:
            raise Reject
        axis = self.b.random.choice(free)
        return axis - rank if self.b.random.random() < 0.4 else axis

    def _tensor(self, key: str) -> str:
        match = re.fullmatch(r"([tfijmnq])(\d?)(\+?)([~=]?)(!?)([a-z]?)", key)
        if match is None:
            raise ValueError(f"no slot {key!r}")
        kind, digits, more, relation, finite, _ = match.groups()

        def fits(t: Tensor) -> bool:
            ranked = not digits or (t.dim() >= int(digits) if more else t.dim() == int(digits))
            return KINDS[kind](t) and ranked

        if relation and self.first:
            name = (self.b.like if relation == "~" else self.b.same)(self.first, fits)
        else:
            name = self.b.choose(fits)
        if finite and not self.b.finite(name):
            raise Reject
        self.first = self.first or name
        return name
