"""Random programs in child processes: `python -m tests.fuzz --count 500 --seed 7 --target onnx,nnef,eager --jobs 2`.

What was done is kept in .fuzz/, and the same call with --resume goes on from there. --ray ADDRESS asks the CPUs of a
Ray cluster in place of --jobs child processes.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests import kept
from tests.fuzz import page
from tests.fuzz.shrink import kind_of, shrink
from tests.fuzz.worker import Worker
from tests.pool import pool

KEPT = Path(__file__).parents[2] / ".fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="programs that torch takes, beside those it does not")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--target", default="onnx,nnef,eager")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="this number alone: its source, its outcomes, its reproducers")
    parser.add_argument(
        "--shrink", type=int, default=0, metavar="N", help="reproducers of the first N kinds of failure"
    )
    parser.add_argument("--write", action="store_true", help="the table of counts into docs/fuzz.md")
    parser.add_argument("--resume", action="store_true", help="keep what .fuzz/ has")
    parser.add_argument("--ray", metavar="ADDRESS", help="over the CPUs of a Ray cluster; local: of this machine")
    options = parser.parse_args()
    targets = options.target.split(",")
    if options.only is not None:
        return show(options.seed, options.only, targets)
    results = run(options.seed, options.count, targets, options.jobs, options.ray, options.resume)
    failures = report(results, targets)
    for key in list(failures)[: options.shrink]:
        number, outcome = failures[key][0]
        print(reproducer(options.seed, number, outcome), flush=True)
    if options.write:
        page.write(options.seed, results, targets)
    return int(bool(failures))


def run(
    seed: str, count: int, targets: list[str], jobs: int, ray: str | None = None, resume: bool = False
) -> dict[int, list[dict[str, Any]]]:
    """Outcomes by program number, until `count` programs are such as torch takes."""
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{seed}-{'-'.join(targets)}.jsonl"
    if not resume:
        file.unlink(missing_ok=True)
    results: dict[int, list[dict[str, Any]]] = {r["number"]: r["outcomes"] for r in kept.rows(file)}

    def valid() -> int:
        return sum(o[0]["kind"] != "invalid" for o in results.values() if o)

    start = time.monotonic()
    requests = ({"seed": seed, "number": n} for n in itertools.count() if n not in results)
    wanted = itertools.takewhile(lambda _: valid() < count, requests)
    with file.open("a") as lines:
        for request, outcomes in pool(partial(Worker, targets), wanted, jobs, ray):
            number = request["number"]
            results[number] = outcomes
            lines.write(json.dumps({"number": number, "outcomes": outcomes}) + "\n")
            lines.flush()
            for o in outcomes:
                if o["kind"] in ("wrong", "foreign"):
                    text = " ".join(o["detail"].split())[:300]
                    print(f"{seed}/{number} {o['target']} {o['kind']}: {text}", flush=True)
            if len(results) % 200 == 0:
                print(f"{valid()} of {count} programs, {time.monotonic() - start:.0f} s", flush=True)
    return results


Failure = tuple[int, dict[str, Any]]


def report(results: dict[int, list[dict[str, Any]]], targets: list[str]) -> dict[Any, list[Failure]]:
    """Print the counts and the kinds of failure; the failures by kind."""
    kinds: dict[Any, list[Failure]] = collections.defaultdict(list)
    for number, outcomes in sorted(results.items()):
        for o in outcomes:
            if o["kind"] in ("wrong", "foreign", "refused"):
                kinds[o["target"], o["kind"], kind_of(o["detail"])].append((number, o))
    for (target, kind, text), found in sorted(kinds.items(), key=lambda item: (item[0][:2], -len(item[1]))):
        print(f"{len(found):4} {target} {kind} (first {found[0][0]}): {text}")
    for target in targets:
        print(target, dict(page.counts(results, target)))
    return {key: found for key, found in kinds.items() if key[1] != "refused"}


def reproducer(seed: str, number: int, outcome: dict[str, Any]) -> str:
    from tests.fuzz.check import WAYS
    from tests.fuzz.generate import program
    from tests.fuzz.program import TRACED

    way = WAYS[number % len(WAYS)]
    small = shrink(program(seed, number), outcome["target"], outcome["kind"], outcome["detail"], way)
    head = (
        f"# {seed}/{number} ({way}) {outcome['target']} {outcome['kind']}: {' '.join(outcome['detail'].split())[:300]}"
    )
    return f"{head}\n{small.reproducer(outcome['target'], {**TRACED, **(outcome['sizes'] or {})})}"


def show(seed: str, number: int, targets: list[str]) -> int:
    worker = Worker(targets)
    failed = False
    for outcome in worker.ask({"seed": seed, "number": number}):
        print(outcome["target"], outcome["kind"], outcome["detail"], outcome["sizes"])
        if outcome["kind"] in ("wrong", "foreign", "refused"):
            failed = True
            print(reproducer(seed, number, outcome))
    worker.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
