"""docs/fuzz.md: the counts of the last large runs, each kind of run in a section of its own.

A run writes what stands between its two marks, and nothing else of the page.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "docs" / "fuzz.md"
KINDS = ("equal", "decomposed", "refused", "specialized", "wrong", "foreign")


def counts(results: dict[int, list[dict[str, Any]]], target: str) -> collections.Counter[str]:
    """How many programs ended in which way on a target."""
    return collections.Counter(o["kind"] for outcomes in results.values() for o in outcomes if o["target"] == target)


def write(seed: str, results: dict[int, list[dict[str, Any]]], targets: list[str]) -> None:
    """The table of a run of programs in place of the last one."""
    rows = [
        "| target | programs | equal | as decomposed | refused | specialized | wrong | foreign errors |",
        "|---|" + "---|" * 7,
    ]
    for target in targets:
        found = counts(results, target)
        total = sum(found[kind] for kind in KINDS)
        share = f"{found['refused']} ({100 * found['refused'] / max(total, 1):.1f} %)"
        cells = [target, total, found["equal"], found["decomposed"], share]
        cells += [found[kind] for kind in ("specialized", "wrong", "foreign")]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    invalid = sum(1 for o in results.values() if o and o[0]["kind"] == "invalid")
    banned = sum(1 for o in results.values() if o and o[0]["kind"] == "banned")
    note = (
        f"Seed {seed}; {invalid} more that torch's eager run or torch.export refuses do not count,\n"
        f"nor do {banned} that have no functional form."
    )
    FILE.write_text(replaced(FILE.read_text(), "counts", "\n".join(rows) + f"\n\n{note}"))


_MUST_NOT = {"HANG": "hangs", "MEMORY": "over 1 GB", "CRASH": "foreign", "FOREIGN": "foreign", "WRONG": "wrong"}


def write_mutants(kind: str, seed: object, found: Any) -> None:
    """The row of a kind of mutants (a `mutants.watch.Summary`) in place of its last one."""
    total, refused = sum(found.counts.values()), found.of("refused")
    bad = collections.Counter(_MUST_NOT[o["outcome"].split()[0].rstrip(":")] for o in found.bad)
    accepted = collections.Counter[str]()
    for (_, outcome), number in found.counts.items():
        accepted[outcome] += number if outcome != "refused" and outcome[:1].islower() else 0
    words = ", ".join(f"{n} {outcome}" for outcome, n in accepted.most_common() if n)
    cells = [kind, str(seed), str(total), str(refused), words, "yes" if found.ran else "none"]
    cells += [str(bad[word]) for word in ("hangs", "over 1 GB", "foreign", "wrong")]
    row = f"| {' | '.join([*cells, ' / '.join(map(str, found.megabytes))])} |"
    text = FILE.read_text()
    lines = section(text, "mutants").splitlines()
    kept = [line for line in lines if not line.startswith(f"| {kind} |")]
    FILE.write_text(replaced(text, "mutants", "\n".join([*kept, row])))


def section(text: str, name: str) -> str:
    """What stands between the marks of a section."""
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end of {name} -->", text, re.DOTALL)
    assert found is not None, f"{FILE} has no section {name}"
    return found.group(1)


def replaced(text: str, name: str, content: str) -> str:
    """The text with another content between the marks of a section."""
    begin, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
    old = f"{begin}{section(text, name)}{end}"
    return text.replace(old, f"{begin}{content}{end}")
