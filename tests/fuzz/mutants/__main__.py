"""Any number of mutants from any seed: `python -m tests.fuzz.mutants --kind archives --count 500 --seed 7`."""

from __future__ import annotations

import argparse
import json
import sys

from tests.fuzz import page
from tests.fuzz.mutants.watch import KINDS, Summary, made, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default=",".join(KINDS), help=f"by comma, of {', '.join(KINDS)}; default: all")
    parser.add_argument("--count", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", type=int, help="this number alone, with its whole error")
    parser.add_argument("--write", action="store_true", help="the table of counts into docs/fuzz.md")
    options = parser.parse_args()
    if options.only is not None:
        return show(options.kind, options.seed, options.only)
    failed = False
    for kind in options.kind.split(","):
        found = summary(kind, options.count, options.seed)
        report(kind, found)
        failed |= bool(found.bad) or found.ran
        if options.write:
            page.write_mutants(kind, options.seed, found)
    return int(failed)


def report(kind: str, found: Summary) -> None:
    """Print the counts, and every mutant that ended as none may."""
    print(f"{kind}: {sum(found.counts.values())} mutants; {'CODE RAN' if found.ran else 'no code ran'}", flush=True)
    for (what, outcome), number in sorted(found.counts.items()):
        print(f"  {what:20s} {outcome:30s} {number}")
    print(f"  memory: {found.megabytes[0]} MB, processes it started {found.megabytes[1]} MB")
    for outcome in found.bad:
        print(" ", json.dumps(outcome))


def show(kind: str, seed: str, number: int) -> int:
    """Make one mutant in this process and say what became of it; its files stay."""
    import random
    import tempfile
    from pathlib import Path

    mutants = made(kind, Path(tempfile.mkdtemp()))
    rng = random.Random(f"{seed} {number}")
    model = rng.choice(mutants.models)
    what = mutants.mutant(rng, model)
    print(f"{model}: {what}, in {mutants.folder}", flush=True)
    try:
        print(mutants.outcome(model, what))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
