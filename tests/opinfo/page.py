"""The page of a target: one section a sweep, counts first, then what does not pass, by reason."""

from __future__ import annotations

import collections
import importlib.metadata
import platform
import re
from pathlib import Path

from tests.opinfo.sweep import BY_WIDER, Sweep

DOCS = Path(__file__).parents[2] / "docs"
RUNTIMES = {
    "onnx": ("onnxruntime", "onnx"),
    "nnef": ("tract",),
    "stablehlo": ("iree-base-compiler", "iree-base-runtime"),
}
OUTSIDE = ("excluded", "fixed")  # what is not counted as tested

Results = dict[str, tuple[str, str]]


def write(sweep: Sweep, results: Results, seconds: float) -> None:
    """Put the sweep's section into the page; the others stay."""
    place = DOCS / f"opinfo-{sweep.target}.md"
    old = place.read_text() if place.exists() else ""
    sections = {m[1]: m[0] for m in re.finditer(r"^## (.*)\n(?:(?!## ).*\n?)*", old, re.MULTILINE)}
    sections[sweep.title] = section(sweep, results, seconds)
    head = [
        f"# Operator database on {sweep.target}",
        "",
        "torch's `op_db`, one case an entry; what a case is and when it passes stands in tests/opinfo (compare.py).",
        f"Written by `python -m tests.opinfo --target {sweep.target} --write` and its options, all of them by",
        "`nox -s opinfo`. Excluded entries have nothing to compare with, fixed ones no dimension that torch.export",
        "lets vary; a dynamic sweep takes the first sample that has a first dimension above 1, and runs two sizes.",
        "",
    ]
    place.write_text("\n".join(head) + "\n" + "\n".join(f"{text.strip()}\n" for text in sections.values()))


def section(sweep: Sweep, results: Results, seconds: float) -> str:
    counts = collections.Counter(status for status, _ in results.values())
    tested = sum(n for status, n in counts.items() if status not in OUTSIDE)
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, (status, detail) in sorted(results.items()):
        if status not in ("pass", "excluded", "fixed"):
            reasons.setdefault((status, clean(detail)), []).append(name)
    others = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()) if status not in ("pass", "wrong"))
    lines = [
        f"## {sweep.title}",
        "",
        f"**{counts['pass']} of {tested} pass, {counts['wrong']} wrong**{', ' if others else ''}{others}.",
        f"{_machine(sweep)}; {seconds:.0f} s.",
        "",
    ]
    wider = [name for name, (status, detail) in sorted(results.items()) if (status, detail) == ("pass", BY_WIDER)]
    if wider:
        lines += [
            f"{len(wider)} of these differ from torch's result by more than the bounds, and lie within them of what",
            "torch computes from the same numbers in the next wider type: these operators lose digits in the narrow",
            f"one, where two runtimes that round at different places cannot agree. They are: {', '.join(wider)}.",
            "",
        ]
    if reasons:
        lines += ["| status | reason | entries |", "|---|---|---|"]
        ordered = sorted(reasons.items(), key=lambda r: (r[0][0], -len(r[1]), r[1]))
        lines += [f"| {status} | {reason} | {', '.join(names)} |" for (status, reason), names in ordered]
    return "\n".join([*lines, ""])


def clean(detail: str) -> str:
    """One line that fits into a cell; which op it was stands in the entry's name."""
    detail = re.sub(r"^target '\w+' refuses aten::[\w.]+: ", "", detail)
    return " ".join(detail.replace("|", "/").split())


def _machine(sweep: Sweep) -> str:
    packages = ("torch", *RUNTIMES.get(sweep.target, ()))
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
    return f"{versions}, Python {platform.python_version()}, {platform.machine()} CPU, one thread"
