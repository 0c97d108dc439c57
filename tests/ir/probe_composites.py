"""Run torch's composite functions on arguments of chance, in children: `python -m tests.ir.probe_composites WHERE`.

Prints the names of those that end their child where files are verified ("verified"), where their views are told
("kernels"), or where one is read ("meta"); "unchecked" has more tries of those alone that are known to trust more than
numbers, without that knowledge.
"""

from __future__ import annotations

import contextlib
import random
import sys
import zlib
from typing import Any

import torch

from ir.importer import without_storage
from ir.importer.checked import kernels_of_file, reads_unchecked, verifying
from ir.importer.torch_api import decompositions, pytree, schema_of
from ir.importer.unchecked_numbers import base_name
from tests.ir.probe_documented import SKIPPED, value
from tests.ir.probe_kernels import operators
from tests.ir.unchecked_kernels import survives

_TRIES = 12
_MORE_TRIES = 150


def _arguments(overload: Any, seed: int) -> dict[str, Any]:
    r = random.Random(seed)
    torch.manual_seed(seed)
    asked = [a for a in schema_of(overload).arguments if a.name not in SKIPPED]
    given = [a for a in asked if not a.has_default_value() or r.random() < 0.5]
    made = {a.name: value(str(a.real_type), r) for a in given}
    if "batch_sizes" in made and r.random() < 0.7:
        made["batch_sizes"] = torch.tensor(r.choice([[], [3, -1, 3], [2, 2], [1 << 40]]), dtype=torch.int64)
    return made


def _verified(overload: Any, tries: int = _TRIES, block: Any = verifying) -> None:
    for i in range(tries):
        with contextlib.suppress(Exception), torch.no_grad(), block():
            overload(**_arguments(overload, zlib.crc32(str(overload).encode()) + i))


def _kernels(overload: Any) -> None:
    _verified(overload, block=kernels_of_file)


def _meta(overload: Any) -> None:
    for i in range(_TRIES):
        given = _arguments(overload, zlib.crc32(str(overload).encode()) + i)
        if not (reads_unchecked(overload) and without_storage.may_end_the_process(overload, (), given)):
            on_meta = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), given)
            with contextlib.suppress(Exception):
                overload(**on_meta)


def _unchecked() -> None:
    known, without_storage.UNCHECKED = without_storage.UNCHECKED, frozenset()
    for o in operators():
        if base_name(o) in known and survives(lambda o=o: _verified(o, _MORE_TRIES)):
            print(base_name(o))


def main() -> None:
    decompositions()  # whose import takes seconds
    if sys.argv[1] == "unchecked":
        return _unchecked()
    call = {"verified": _verified, "kernels": _kernels, "meta": _meta}[sys.argv[1]]
    asked = [o for o in operators() if without_storage.is_composite(o)]
    for some in (asked[i : i + 25] for i in range(0, len(asked), 25)):
        if survives(lambda s=some: [*map(call, s)]):
            for o in some:
                if ended := survives(lambda o=o: call(o)):
                    print(base_name(o), ended, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
