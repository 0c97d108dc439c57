"""A random program: an nn.Module as lines of Python, so that a failure is printed as what reproduces it."""

from __future__ import annotations

import itertools
import linecache
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Sizes = Mapping[str, int]
TRACED: Sizes = {"B": 3, "T": 4}
OTHERS: tuple[Sizes, ...] = ({"B": 5, "T": 7}, {"B": 1, "T": 1}, {"B": 0, "T": 0}, {"B": 2, "T": 1})

HEADER = "import math\nimport torch\nimport torch.nn.functional as F"
CONTAINERS = {
    "Pair(": """
@dataclasses.dataclass
class Pair:
    first: object
    second: object = None
torch.export.register_dataclass(Pair, serialized_type_name="fuzz.Pair{number}")
""",
    "Named(": """
Named = collections.namedtuple("Named", ["left", "right"])
torch.utils._pytree._register_namedtuple(Named, serialized_type_name="fuzz.Named{number}")
""",
}
IMPORTS = {"Pair(": "import dataclasses\n", "Named(": "import collections\n"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Input:
    """One tensor argument; a size given as a name is dynamic. `values` names a way to fill it."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    values: str = "grid"

    def tensor(self, sizes: Sizes, seed: int) -> Tensor:
        shape = [sizes[s] if isinstance(s, str) else s for s in self.shape]
        return filled(shape, getattr(torch, self.dtype), self.values, random.Random(f"{self.name} {seed} {shape}"))


def filled(shape: list[int], dtype: torch.dtype, values: str, r: random.Random) -> Tensor:
    """A tensor of numbers that floating types hold exactly: multiples of 1/4; "special" has nan and the like too."""
    count = math.prod(shape)
    if dtype is torch.bool:
        numbers: list[Any] = [r.random() < 0.5 for _ in range(count)]
    elif dtype.is_floating_point:
        numbers = [r.randint(-16, 16) / 4 for _ in range(count)]
        if values == "special":
            most = torch.finfo(dtype).max
            kinds = [math.nan, math.inf, -math.inf, -0.0, 0.0, most, -most, torch.finfo(dtype).tiny]
            numbers = [r.choice(kinds) if r.random() < 0.3 else n for n in numbers]
        elif values == "ties":
            numbers = [r.choice([-1.0, 0.0, -0.0, 2.0]) for _ in range(count)]
        elif values == "positive":
            numbers = [abs(n) + 0.25 for n in numbers]
    else:
        low = 0 if not dtype.is_signed else -4
        numbers = [r.randint(low, 5) for _ in range(count)]
        if values == "special":
            info = torch.iinfo(dtype)
            numbers = [r.choice([info.max, info.min, 0, 1]) if r.random() < 0.3 else n for n in numbers]
        elif values == "positive":
            numbers = [abs(n) + 1 for n in numbers]
    return torch.tensor(numbers, dtype=dtype).reshape(shape)


@dataclass(frozen=True)
class Program:
    """What the generator makes: inputs, lines of __init__, lines of forward, and what is returned."""

    inputs: tuple[Input, ...]
    members: tuple[str, ...]
    steps: tuple[str, ...]
    result: str
    label: str = field(default="", compare=False)  # which program of which seed

    @property
    def body(self) -> str:
        lines = [*self.steps, f"return {self.result}"]
        return "\n".join(f"        {line}" for line in lines)

    @property
    def source(self) -> str:
        """The module's source, complete."""
        used = [key for key in CONTAINERS if key in self.result]
        before = "".join(IMPORTS[k] for k in used)
        containers = "".join(CONTAINERS[k].replace("{number}", str(next(_numbers))) for k in used)
        members = "".join(f"\n        {line}" for line in self.members)
        names = ", ".join(["self", *(i.name for i in self.inputs)])
        return (
            f"{before}{HEADER}\n{containers}\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        torch.manual_seed(0){members}\n\n"
            f"    def forward({names}):\n{self.body}\n"
        )

    def module(self) -> torch.nn.Module:
        """The module, made anew."""
        return _class(self)().eval()

    def args(self, sizes: Sizes = TRACED, seed: int = 0) -> tuple[Tensor, ...]:
        return tuple(i.tensor(sizes, seed) for i in self.inputs)

    @property
    def dynamic(self) -> set[str]:
        return {s for i in self.inputs for s in i.shape if isinstance(s, str)}

    def shapes(self, leaf: Any = None) -> tuple[dict[int, Any] | None, ...] | None:
        """torch.export's dynamic_shapes, with the dimensions' names or with `leaf`."""
        found = tuple({a: leaf or s for a, s in enumerate(i.shape) if isinstance(s, str)} or None for i in self.inputs)
        return found if any(found) else None

    def all_sizes(self) -> list[Sizes]:
        """The sizes to run at, the traced ones first."""
        found: list[dict[str, int]] = []
        for sizes in (TRACED, *OTHERS):
            mine = {k: v for k, v in sizes.items() if k in self.dynamic}
            if mine not in found:
                found.append(mine)
        return found  # type: ignore[return-value]

    def reproducer(self, target: str, sizes: Sizes) -> str:
        """Source that stands alone and shows the failure."""
        traced, other = self.args(), self.args(sizes, 1)
        shapes = f", dynamic_shapes={self.shapes()!r}" if self.shapes() else ""
        return (
            f"{self.source}\nimport ir\nfrom math import inf, nan\nargs = {_literal(traced)}\n"
            f"other = {_literal(other)}  # the fuzz runs it in columns: t.mT.contiguous().mT\n"
            f'program = ir.export(Model().eval(), args, target="{target}"{shapes})\n'
            "print(program(*[t.clone() for t in other]))\n"
            "print(program.graph.context.program.module()(*[t.clone() for t in other]))\n"
            "program.verify(other)\n"
        )


@lru_cache(maxsize=4)
def _class(program: Program) -> Callable[[], torch.nn.Module]:
    """The program's class; its source is known to tracebacks."""
    source = program.source
    file = f"<fuzz {program.label or next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace: dict[str, Any] = {"__name__": "fuzz"}
    exec(compile(source, file, "exec"), namespace)
    found: Callable[[], torch.nn.Module] = namespace["Model"]
    return found


def _literal(tensors: tuple[Tensor, ...]) -> str:
    def one(t: Tensor) -> str:
        shaped = f".reshape({list(t.shape)})" if not t.numel() else ""
        return f"torch.tensor({t.tolist() if t.numel() else []}, dtype={t.dtype}){shaped}"

    return "(" + "".join(f"{one(t)}, " for t in tensors).rstrip() + ")"
