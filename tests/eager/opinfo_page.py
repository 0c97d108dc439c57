"""docs/opinfo-eager.md: torch's operator database through the eager target, `python -m tests.eager.opinfo_page`."""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from pathlib import Path

import torch

from tests.eager.test_opinfo import LIMITS, SAMPLES, Outcome, outcome
from tests.opinfo.samples import database, name_of

PAGE = Path(__file__).parents[2] / "docs" / "opinfo-eager.md"


def page(outcomes: dict[str, Outcome], seconds: float) -> str:
    captured = {n: o for n, o in outcomes.items() if o.captured}
    exact, default = (sum(not getattr(o, kind) for o in captured.values()) for kind in ("exact", "default"))
    lines = [
        "# Operator database on eager",
        "",
        f"torch's `op_db`, the first {SAMPLES} samples of each entry, float32 (else the first dtype), against",
        "`ExportedProgram.module()`. Written by `python -m tests.eager.opinfo_page`, which `nox -s opinfo` runs.",
        "",
        "| | entries |",
        "|---|---|",
        f"| in the database | {len(outcomes)} |",
        f"| torch.export captures | {len(captured)} |",
        f"| equal bit for bit with `optimize=False` | {exact} |",
        f"| with the default equal bit for bit, or to rounding where a pass changed the arithmetic | {default} |",
        "",
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()} CPU, one thread; "
        f"{seconds:.0f} s.",
        "",
    ]
    wrong = {n: o for n, o in captured.items() if o.exact or o.default}
    if wrong:
        lines += ["| not equal | without passes | with the default |", "|---|---|---|"]
        why = {n: LIMITS.get(n) for n in wrong}
        lines += [f"| {n} | {_cell(why[n] or o.exact)} | {_cell(why[n] or o.default)} |" for n, o in wrong.items()]
        lines.append("")
    refused: dict[str, list[str]] = {}
    for name, o in outcomes.items():
        if o.refused:
            refused.setdefault(o.refused, []).append(name)
    lines += ["| not captured | what torch says |", "|---|---|"]
    lines += [f"| {', '.join(names)} | {_cell(why)} |" for why, names in refused.items()]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--match", default="", help="entries whose names contain this; the page stays as it is")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start, outcomes = time.time(), {}
    for op in database():
        name = name_of(op)
        if options.match in name:
            found = outcomes[name] = outcome(op)
            if found.exact or found.default:
                print(name, found, flush=True)
    text = page(outcomes, time.time() - start)
    print(text)
    if not options.match:
        PAGE.write_text(text)
    return int(any((o.exact or o.default) and n not in LIMITS for n, o in outcomes.items()))


if __name__ == "__main__":
    sys.exit(main())
