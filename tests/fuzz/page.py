"""docs/fuzz.md: the counts of the last large runs."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "docs" / "fuzz.md"
KINDS = ("equal", "refused", "wrong", "foreign")


def counts(results: dict[int, list[dict[str, Any]]], target: str) -> collections.Counter[str]:
    """How many programs ended in which way on a target."""
    return collections.Counter(o["kind"] for outcomes in results.values() for o in outcomes if o["target"] == target)


def write(seed: str, results: dict[int, list[dict[str, Any]]], targets: list[str]) -> None:
    """The table of this run in place of the last one."""
    head, _, _ = FILE.read_text().partition("<!-- counts -->")
    rows = ["| target | programs | equal | refused | wrong | foreign errors |", "|---|---|---|---|---|---|"]
    for target in targets:
        found = counts(results, target)
        total = sum(found.values())
        share = f"{found['refused']} ({100 * found['refused'] / max(total, 1):.1f} %)"
        rows.append(f"| {target} | {total} | {found['equal']} | {share} | {found['wrong']} | {found['foreign']} |")
    invalid = sum(1 for o in results.values() if o and o[0]["kind"] == "invalid")
    note = f"Seed {seed}; {invalid} more that torch's eager run or torch.export refuses do not count."
    FILE.write_text(f"{head}<!-- counts -->\n\n" + "\n".join(rows) + f"\n\n{note}\n")
