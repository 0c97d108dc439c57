"""What a row of the case table is, and the few builders that rows are written with.

A row names a function or a module and describes its inputs; a dimension given as a string is dynamic:

    row("add_alpha", lambda x, y: torch.add(x, y, alpha=2), f32("B", 3), f32(3))
    mod("lstm", lambda: nn.LSTM(4, 5, batch_first=True), f32("B", "S", 4))

Everything is seeded by the row's full name, so a case means the same numbers in every run
and on every target.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

Sizes = Mapping[str, int]

# Exported at the first, run at both. No two names share a size, and none is 0 or 1, which torch.export fixes.
TRACED: Sizes = {"B": 3, "S": 5, "N": 4, "T": 6, "H": 9, "W": 11}
OTHER: Sizes = {"B": 2, "S": 8, "N": 7, "T": 10, "H": 12, "W": 13}


@dataclass(frozen=True, eq=False)
class Spec:
    """One tensor input: its dtype, its shape, and either a range for random data or the data itself."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None
    value: Any = None

    @property
    def dynamic(self) -> dict[int, str] | None:
        return {axis: size for axis, size in enumerate(self.shape) if isinstance(size, str)} or None

    def tensor(self, sizes: Sizes, generator: torch.Generator) -> Tensor:
        shape = [sizes[size] if isinstance(size, str) else size for size in self.shape]
        if self.value is not None:  # literal data repeats over the shape, where one is given
            data = torch.tensor(self.value, dtype=self.dtype)
            return data.expand(shape).clone() if shape else data
        if self.dtype is torch.bool:
            mask = torch.rand(shape, generator=generator) < 0.5
            if mask.numel() > 1:  # never all of one kind
                mask.view(-1)[0], mask.view(-1)[-1] = True, False
            return mask
        if self.dtype.is_complex:
            return torch.randn(shape, dtype=self.dtype, generator=generator)
        if not self.dtype.is_floating_point:
            least = (-5 if self.dtype.is_signed else 0) if self.low is None else int(self.low)
            bound = 6 if self.high is None else int(self.high)
            return torch.randint(least, bound, shape, generator=generator).to(self.dtype)
        if self.low is None and self.high is None:
            return torch.randn(shape, generator=generator).to(self.dtype)
        low, high = self.low or 0.0, 1.0 if self.high is None else self.high
        return (low + (high - low) * torch.rand(shape, generator=generator)).to(self.dtype)


@dataclass(frozen=True)
class Builder:
    """`f32("B", 3)` is a Spec. Floats are normal unless given a range, integers lie in [-5, 6)."""

    dtype: torch.dtype

    def __call__(
        self,
        *shape: int | str,
        low: float | None = None,
        high: float | None = None,
        positive: bool = False,
        value: Any = None,
    ) -> Spec:
        if positive:
            low, high = (0.1, 3.0) if self.dtype.is_floating_point else (1, 6)
        return Spec(self.dtype, shape, low, high, value)


f32, f64, f16, bf16 = map(Builder, (torch.float32, torch.float64, torch.float16, torch.bfloat16))
i8, i16, i32, i64, u8 = map(Builder, (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8))
boolean, c64 = Builder(torch.bool), Builder(torch.complex64)
nan, inf = math.nan, math.inf


@dataclass(frozen=True, eq=False)
class Case:
    """A module and its inputs, both made anew at each call: a case may write to its inputs or its buffers."""

    name: str
    build: Callable[[], nn.Module]
    specs: tuple[Spec, ...]
    random: bool = False  # only shapes and dtypes can be compared
    train: bool = False
    beyond_export: bool = False  # torch.export alone fixes a size that is dynamic here: capture must help

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())

    @property
    def dynamic_shapes(self) -> tuple[dict[int, str] | None, ...] | None:
        """torch.export's form, a name at each leaf; None where every size is fixed."""
        dynamic = tuple(spec.dynamic for spec in self.specs)
        return dynamic if any(dynamic) else None

    def args(self, sizes: Sizes = TRACED) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(self.seed)
        return tuple(spec.tensor(sizes, generator) for spec in self.specs)

    def module(self) -> nn.Module:
        # cond, scan and their like compile themselves when called, and a later export would fix those sizes.
        torch.compiler.reset()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            module = self.build().train(self.train)
            with torch.no_grad():
                for tensor in (*module.parameters(), *module.buffers()):
                    # Ones and zeros (fresh affine weights, biases, statistics) would hide a dropped operand.
                    if tensor.is_floating_point() and tensor.numel() > 1 and tensor.min() == tensor.max():
                        tensor.uniform_(0.5, 1.5)
        return module


def mod(name: str, build: Callable[[], nn.Module], *specs: Spec, **flags: bool) -> Case:
    """A row about a module; `build` is called under the case's seed. The flags are those of Case."""
    return Case(name, build, specs, **flags)


def row(name: str, function: Callable[..., Any], *specs: Spec, **flags: bool) -> Case:
    """A row about a function, whose own parameter names are those of the module's forward."""
    kind = type("Row", (nn.Module,), {"forward": staticmethod(function)})
    return Case(name, kind, specs, **flags)


def unary(ops: str, spec: Spec | None = None, namespace: Any = torch) -> list[Case]:
    """A row for each named operator of one tensor and no parameters."""

    def one(op: str) -> Case:
        function = getattr(namespace, op)
        return row(op, lambda x: function(x), f32("B", 3) if spec is None else spec)

    return [one(op) for op in ops.split()]


def family(module: str, *cases: Case) -> list[Case]:
    """The cases of one file, named after it: `CASES = family(__name__, ...)`."""
    prefix = module.rpartition(".")[2]
    repeated = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    if repeated:
        raise ValueError(f"{prefix}: repeated names {repeated}")
    return [replace(case, name=f"{prefix}/{case.name}") for case in cases]
