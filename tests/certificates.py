"""Certificates of a sample of the case table: `python -m tests.certificates [--count 60] [--seed 0] [--target onnx]`.

Every operator signature of a case that a target runs as torch does is tried alone on random and adversarial inputs, and
what is accused is printed with its inputs: it is a fault of the handler, or of the certificate.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import warnings

import ir
from tests.cases import ALL, Case
from tests.harness import captured

TARGETS = ("onnx", "nnef", "eager")


def chosen(count: int, seed: int) -> list[Case]:
    """The sample."""
    return random.Random(seed).sample(list(ALL), min(count, len(ALL)))


def accused(case: Case, target: str) -> list[str]:
    """The signatures of a case that a target is said to compute wrongly, each with the inputs; else nothing.

    Raises:
        ir.ExportError: the target does not take the case.
    """
    found = ir.export(captured(case), target=target)
    try:
        certificate = found.certify(cached=False)
    except ir.MismatchError:
        certificate = found.certificate
    assert certificate is not None
    failed = [(s, t) for s in certificate.signatures for t in s.tried if t.fails]
    return [f"{s.text} differs at {t.kind}: {t.differs}" for s, t in failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS, action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tried = wrong = 0
    for case in chosen(options.count, options.seed):
        for target in options.target or TARGETS:
            limits = importlib.import_module(f"tests.{target}.limits").LIMITS
            if case.name in limits:
                continue
            lines = accused(case, target)
            tried, wrong = tried + 1, wrong + bool(lines)
            for line in lines:
                print(f"{case.name} on {target}: {line}", flush=True)
    print(f"{tried} certificates, {wrong} accuse")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
