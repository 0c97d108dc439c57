"""Runs the case table on a target: `python -m tests.harness --target onnx [--family pool] [--match lstm] [-x]`.

Each case is captured once, exported, and its artifact compared with torch at the traced sizes and, where a dimension
is dynamic, at sizes that were not traced.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

import ir
from tests import reached
from tests.cases import ALL, OTHER, TRACED, Case

DIFFERS = "the runtime differs: "


@lru_cache(maxsize=1)
def captured(case: Case) -> ir.Graph:
    """The case's graph; kept for the next target that asks for the same case."""
    return ir.check(ir.capture(case.module(), case.args(TRACED), dynamic_shapes=case.dynamic_shapes))


def run_case(case: Case, target: Any, **options: Any) -> ir.Exported:
    """Export and compare.

    Raises:
        ir.ExportError: the export is refused, the runtime fails, or a number differs.
    """
    torch.manual_seed(0)
    program = ir.export(captured(case), target=target, **options)
    for sizes in (TRACED, OTHER) if case.dynamic_shapes else (TRACED,):
        program.verify(case.args(sizes))
    return program


def check_case(case: Case, target: Any, limits: Mapping[str, str], **options: Any) -> None:
    """A case passes, or stands in the limits and is refused for that reason: a limit that no longer holds fails.

    Where the reason begins with DIFFERS it is the runtime's own kernel that gives something else, or fails.
    """
    with reached.noting(case.name, target):
        if case.name not in limits:
            run_case(case, target, **options)
        else:
            _check_limit(case, target, limits, **options)


def _check_limit(case: Case, target: Any, limits: Mapping[str, str], **options: Any) -> None:
    try:
        run_case(case, target, **options)
    except (ir.UnsupportedOpsError, ir.RefusedError, ir.CaptureError) as error:
        if not limits[case.name].startswith(DIFFERS):
            assert limits[case.name] in str(error), f"{case.name} is refused for another reason: {error}"
            return
    except (ir.MismatchError, ir.RuntimeFailure):
        if limits[case.name].startswith(DIFFERS):
            return
        raise
    raise AssertionError(f"{case.name} passes: take it out of the limits ({limits[case.name]!r})")


def outcome(case: Case, target: Any, **options: Any) -> tuple[str, str]:
    """("pass" | "refused" | "wrong" | "crash" | "error", message)."""
    try:
        run_case(case, target, **options)
    except (ir.UnsupportedOpsError, ir.RefusedError) as error:
        return "refused", str(error)
    except ir.MismatchError as error:
        return "wrong", str(error)
    except ir.RuntimeFailure as error:
        return "crash", str(error)
    except Exception:
        return "error", traceback.format_exc(limit=-6)
    return "pass", ""


def select(family: str | None, match: str | None) -> Iterable[Case]:
    """Cases of a family (or several, by comma) whose name contains `match`."""
    families = family.split(",") if family else None
    return [c for c in ALL if (families is None or c.family in families) and (not match or match in c.name)]


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="onnx")
    parser.add_argument("--family")
    parser.add_argument("--match")
    parser.add_argument("--opset", type=int)
    parser.add_argument("-x", action="store_true", help="stop at the first failure")
    parser.add_argument("-q", action="store_true", help="one line a failure")
    options = parser.parse_args()
    extra = {"opset": options.opset} if options.opset else {}
    counts: collections.Counter[str] = collections.Counter()
    start = time.time()
    for case in select(options.family, options.match):
        status, message = outcome(case, options.target, **extra)
        counts[status] += 1
        if status != "pass":
            lines = message.strip().splitlines()
            print(
                f"{status:8} {case.name}: "
                + ((lines[-1] if status == "error" else lines[0])[:200] if options.q else message)
            )
            if options.x:
                break
    print(f"{options.target}: {dict(counts)} in {time.time() - start:.0f} s")
    return int(set(counts) != {"pass"})


if __name__ == "__main__":
    sys.exit(main())
