"""What the command line says of an export: a table, the next step, or the same as data for programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ir.bounds import Range
from ir.cli.printing import Console
from ir.exported import Exported
from ir.files import size_text


@dataclass(frozen=True)
class Outcome:
    """One target's result. `error` is the sentence of a refusal, empty where a file was written; times in seconds."""

    target: str
    path: str = ""
    bytes: int = 0
    ops: int = 0
    weights: dict[str, int] | None = None
    dynamic: dict[str, str] | None = None
    seconds: dict[str, float] | None = None
    max_error: float | None = None
    verified: bool = False
    notes: tuple[str, ...] = ()
    usage: str = ""
    error: str = ""


def outcome(program: Exported, seconds: dict[str, float], verified: bool, notes: tuple[str, ...] = ()) -> Outcome:
    """What there is to say of a program that was written."""
    weights: Counter[str] = Counter()
    for value in program.graph.weights:
        weights[value.type.dtype.name] += math.prod(s for s in value.type.shape if isinstance(s, int))
    assert program.path is not None
    error = program.report.error
    return Outcome(
        program.target.name,
        str(program.path),
        size_of(program.path, program.target.side_files(program.path)),
        len(program.graph.nodes),
        dict(weights),
        {str(s): _range(r) for s, r in program.graph.symbols.items()},
        {k: round(v, 3) for k, v in seconds.items()},
        error if verified and error == error else None,
        verified,
        (*notes, *program.report.notes),
        program.target.usage(program.path, program.graph),
    )


def _range(allowed: Range) -> str:
    return f"from {allowed.min}" + ("" if allowed.max is None else f" to {allowed.max}")


def size_of(path: Path, beside: Any = ()) -> int:
    """Bytes of an artifact: a file and those beside it, or a directory."""
    files = [*path.rglob("*")] if path.is_dir() else [path, *(path.with_name(n) for n in beside)]
    return sum(f.stat().st_size for f in files if f.is_file())


def as_json(found: list[Outcome]) -> str:
    """A list with one object for each target."""
    return json.dumps([asdict(o) for o in found], indent=2)


def show(found: list[Outcome], console: Console) -> None:
    """One column for each target, then what to do next."""
    table = Table("", *(o.target for o in found), show_edge=False, pad_edge=False)
    for name, cells in _rows(found):
        if any(cells):
            table.add_row(name, *cells)
    console.print(table, markup=False)
    for note in dict.fromkeys(n for o in found for n in o.notes):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    for o in found:
        if o.usage:
            console.print(f"\n{o.target}:\n{o.usage}", highlight=False, markup=False, soft_wrap=True)
    paths = [o.path for o in found if o.path]
    if paths:
        drawn = next((f"; netron {p} draws it" for p in paths if p.endswith(".onnx")), "")
        said = f"\nir run {paths[0]} runs it; ir bench {' '.join(paths)} times it{drawn}"
        console.print(said, highlight=False, markup=False, soft_wrap=True)


def _rows(found: list[Outcome]) -> list[tuple[str, list[str]]]:
    seconds = list(dict.fromkeys(k for o in found for k in o.seconds or {}))
    return [
        ("file", [o.path for o in found]),
        ("refused", [o.error.partition("\n")[0] for o in found]),
        ("size", [size_text(o.bytes) if o.path else "" for o in found]),
        ("operators", [str(o.ops) if o.path else "" for o in found]),
        ("weights", [", ".join(f"{n:,} {t}" for t, n in (o.weights or {}).items()) for o in found]),
        ("dynamic", [", ".join(f"{s} {r}" for s, r in (o.dynamic or {}).items()) for o in found]),
        *((f"{name}, s", [str((o.seconds or {}).get(name, "")) for o in found]) for name in seconds),
        ("largest error", [_error(o) for o in found]),
    ]


def _error(o: Outcome) -> str:
    if not o.path:
        return ""
    if not o.verified:
        return "not compared"
    return "nothing to compare" if o.max_error is None else f"{o.max_error:.2g}"
