"""docs/coverage.md out of the case table and the limits of each target: `python -m tests.coverage_page`.

The limits are strict (tests.harness.check_case), so the page says what the tests have seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cases import FAMILIES
from tests.eager.limits import LIMITS as EAGER
from tests.nnef.limits import LIMITS as NNEF
from tests.onnx.limits import LIMITS as ONNX

PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
LIMITS = {"onnx": ONNX, "nnef": NNEF, "eager": EAGER}


def page() -> str:
    """The page's text."""
    lines = [
        "# Coverage",
        "",
        "Cases of the op table (`tests/cases`) that run equal to torch on each target, at two sizes where a dimension",
        "is dynamic; the rest are refused with the reason below, or, where that says so, differ in what the runtime's",
        "own kernels make of nan and infinities. Written by `python -m tests.coverage_page`.",
        "",
        f"| family | cases | {' | '.join(LIMITS)} |",
        f"|---|---|{'---|' * len(LIMITS)}",
    ]
    for family, cases in FAMILIES.items():
        passed = [sum(c.name not in limits for c in cases) for limits in LIMITS.values()]
        lines.append(f"| {family} | {len(cases)} | {' | '.join(map(str, passed))} |")
    everything = [c for cases in FAMILIES.values() for c in cases]
    totals = [sum(c.name not in limits for c in everything) for limits in LIMITS.values()]
    lines.append(f"| **all** | {len(everything)} | {' | '.join(f'**{t}**' for t in totals)} |")
    for target, limits in LIMITS.items():
        lines += ["", f"## Limits of {target}", "", "| case | reason |", "|---|---|"]
        lines += [f"| {name} | {reason.replace('|', '/')} |" for name, reason in sorted(limits.items())]
        if not limits:
            lines.append("| none | |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    sys.exit(0)
