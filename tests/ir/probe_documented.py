"""Run torch's documented functions on arguments of chance, in children: `python -m tests.ir.probe_documented`.

Prints those that ended their child.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable
from typing import Any

import torch

from ir.importer.checked import is_documented
from ir.importer.schema import op_schema
from ir.importer.torch_api import has_kernel, schema_of
from tests.ir.probe_kernels import operators
from tests.ir.unchecked_kernels import FAR, LEAST, survives

_TRIES = 6
_ODD = (FAR, -FAR, 4, -5, LEAST, 2**63 - 1, -1)
SKIPPED = {"dtype", "layout", "device", "pin_memory", "memory_format", "generator", "out_dtype"}
_PLAIN: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda r: r.choice([0, 1, 1, 2, 3, 4, -1, -2, 400]),
    "float": lambda r: r.choice([0.0, 1.0, 0.5, float("nan"), 1e30, -1.0, 1e-12, 1e-300, 1e300]),
    "number": lambda r: r.choice([0, 1, 2.5, -1]),
    "bool": lambda r: r.random() < 0.5,
    "str": lambda r: r.choice(["sum", "mean", "reflect", "linear", "amax", "prod", "trunc", "floor"]),
}


def _tensor(r: random.Random) -> torch.Tensor:
    """Floats, or integers of which one often points nowhere."""
    if r.random() < 0.55:
        shape = r.choice([(4, 4), (4,), (1, 1, 4, 4), (2, 4, 4), (1, 1, 4, 4, 4), (), (0,), (16,)])
        made = torch.randn(shape) * r.choice([1.0, 1.0, 1e30, float("nan")])
        return made if r.random() < 0.8 else made.nan_to_num().clamp(0, 9).to(torch.uint8)
    found = torch.randint(0, 4, r.choice([(4,), (4, 4), (2, 4), (1,), (3,), (16,)]))
    if r.random() < 0.5:
        found.view(-1)[-1] = r.choice(_ODD)
    return found.to(r.choice([torch.int64, torch.int64, torch.int32]))


def value(kind: str, r: random.Random) -> Any:
    if kind.startswith("Optional["):
        return None if r.random() < 0.5 else value(kind[9:-1], r)
    if kind.startswith("List["):
        return [value(kind[5:-1], r) for _ in range(r.choice([1, 2, 2, 3]))]
    return _tensor(r) if kind == "Tensor" else _PLAIN[kind](r) if kind in _PLAIN else None


def _try(overload: Any) -> None:
    for i in range(_TRIES):
        seed = zlib.crc32(str(overload).encode()) + i
        r = random.Random(seed)
        torch.manual_seed(seed)
        asked = [a for a in schema_of(overload).arguments if a.name not in SKIPPED]
        given = [a for a in asked if not a.has_default_value() or r.random() < 0.5]
        with contextlib.suppress(Exception):
            overload(**{a.name: value(str(a.real_type), r) for a in given})


def main() -> None:
    asked = [o for o in operators() if is_documented(o) and not op_schema(o).writes and has_kernel(o.name())]
    for some in (asked[i : i + 25] for i in range(0, len(asked), 25)):
        if survives(lambda s=some: [*map(_try, s)]):
            for o in some:
                if ended := survives(lambda o=o: _try(o)):
                    print(o, ended)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
