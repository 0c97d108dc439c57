"""Every program on a GPU that is not there: `python -m tests.fake_cuda.sweep`, or `nox -s fake_cuda`.

Options: [--part cases|models|wide|operators] [--match TEXT] [--resume] [--write]. With --write the table goes to
docs/fake-cuda.md. What was found lies in build/fake_cuda/, a line a program: --resume keeps it, and the page has all of
the parts.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import ir
from tests import kept
from tests.cases import ALL, TRACED, Case

from .compare import ReferenceFails, compare
from .page import page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "fake-cuda.md"
Outcome = dict[str, Any]


def outcome(graph: ir.Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """What was seen of a graph without passes and with them; "unseen" has the reason where torch's own does not run."""
    found: Outcome = {"values": 0, "compared": 0, "misplaced": [], "waits": [], "torch_waits": 0}
    try:
        programs = compare(graph, args, kwargs)
    except ReferenceFails as error:
        return {"unseen": str(error)}
    except Exception as error:  # torch's own runs, and ours does not
        found["misplaced"] = [f"fails: {type(error).__name__}: {str(error).partition(chr(10))[0]}"]
        return found
    for program in programs:
        for key, value in asdict(program).items():
            found[key] += list(value) if isinstance(value, tuple) else value
    return found


def of_case(case: Case) -> Outcome:
    """A row of the operator table."""
    torch.manual_seed(0)
    args = case.args(TRACED)
    return outcome(ir.capture(case.module(), args, dynamic_shapes=case.dynamic_shapes), args, {})


def cases() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    for case in ALL:
        yield case.name, lambda case=case: of_case(case)


def operators() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Entries of torch's operator database, the first sample that torch.export captures."""
    from tests.eager.test_opinfo import samples
    from tests.opinfo.samples import database, name_of

    def of_entry(op: Any) -> Outcome:
        torch.manual_seed(0)
        reason = "no samples for the CPU"
        for sample in islice(samples(op), 3):
            try:
                program = torch.export.export(sample, sample.inputs(), strict=False)
            except Exception as error:
                reason = f"torch.export: {type(error).__name__}"
                continue
            return outcome(ir.capture(program), sample.inputs(), {})
        return {"unseen": reason}

    for op in database():
        yield name_of(op), lambda op=op: of_entry(op)


def _models(names: Any, get: Callable[[str], Any]) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    def of_model(name: str) -> Outcome:
        model = get(name)
        args, kwargs = model.inputs(model.sizes)
        graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
        return outcome(graph, args, kwargs)

    for name in names:
        yield name, lambda name=name: of_model(name)


def models() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """The zoo's small variants."""
    from tests import zoo

    yield from _models(zoo.NAMES, lambda name: zoo.get(name, small=True))


def second_zoo() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """The second zoo, which has one size."""
    from tests.zoo import wide

    yield from _models(wide.NAMES, wide.get)


PARTS: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Outcome]]]]] = {
    "cases": cases, "models": models, "wide": second_zoo, "operators": operators,
}  # fmt: skip


def swept(part: str, match: str, file: Path) -> dict[str, Outcome]:
    """What was found of each program of a part, those of the file left out; wrong ones are printed as they come."""
    rows = dict(kept.rows(file))
    for name, run in PARTS[part]():
        if match not in name or name in rows:
            continue
        try:
            found = run()
        except Exception as error:  # not captured
            found = {"unseen": f"capture: {type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        rows[name] = found
        with file.open("a") as lines:
            lines.write(json.dumps([name, found]) + "\n")
        if wrong(found):
            print(part, name, *found["misplaced"], *found["waits"], sep="\n  ", flush=True)
    return rows


def wrong(row: Outcome) -> bool:
    return bool(row.get("misplaced") or row.get("waits"))


def main() -> int:
    warnings.simplefilter("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # what torch's own refuses is in the table
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="one alone")
    parser.add_argument("--match", default="", help="names that contain this")
    parser.add_argument("--resume", action="store_true", help="keep what build/fake_cuda/ has")
    parser.add_argument("--write", action="store_true", help=f"into {DOCS.name}")
    o = parser.parse_args()
    folder = ROOT / "build" / "fake_cuda"
    folder.mkdir(parents=True, exist_ok=True)
    files = {part: folder / f"{part}.jsonl" for part in PARTS}
    for part in [o.part] if o.part else PARTS:
        if not o.resume:
            files[part].unlink(missing_ok=True)
        rows = swept(part, o.match, files[part])
        seen = [r for r in rows.values() if "unseen" not in r]
        print(f"{part}: {len(seen)} of {len(rows)} seen, {sum(map(wrong, seen))} wrong", flush=True)
    found = {part: rows for part, file in files.items() if (rows := dict(kept.rows(file)))}
    if o.write:
        DOCS.write_text(page(found, {part: sum(1 for _ in programs()) for part, programs in PARTS.items()}))
    return int(any(wrong(r) for rows in found.values() for r in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
