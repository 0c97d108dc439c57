"""torch's operator database on a target, as a table: `python -m tests.opinfo --target onnx [--write] [--match name]`.

One case an entry of op_db: the first sample of float32, else of the first of int64, bool, complex64 that the entry
takes, else of any. Tensor leaves are inputs, everything else is closed over. Equal to eager at rtol 1e-3, atol 1e-4,
nan equal nan, shape and dtype the same; what draws random numbers by shape and dtype. Each case has a time limit.
"""

from __future__ import annotations

import argparse
import collections
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ir

DOCS = Path(__file__).parents[1] / "docs"
PREFERRED = (torch.float32, torch.int64, torch.bool, torch.complex64)
SECONDS = 60


class Sample(torch.nn.Module):
    """One sample of an operator, its tensors as inputs and everything else fixed."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [i for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor)]

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.leaves[i].detach().clone() for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(first, *args, **kwargs)


class TimeOut(Exception):
    """The case took too long."""


def entries(match: str = "") -> Iterator[tuple[str, Any]]:
    """Names and entries of the database."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if match in name:
            yield name, op


def outcome(name: str, op: Any, target: str) -> tuple[str, str]:
    """(status, detail): pass, excluded, refused, wrong, failed."""
    supported = op.supported_dtypes("cpu")
    dtype = next((d for d in PREFERRED if d in supported), next(iter(sorted(supported, key=str)), None))
    if dtype is None:
        return "excluded", "no dtype on the CPU"
    try:
        torch.manual_seed(0)
        sample = Sample(op.op, next(iter(op.sample_inputs("cpu", dtype, requires_grad=False))))
        sample(*sample.inputs())
    except Exception as error:
        return "excluded", f"eager: {type(error).__name__}"

    def expire(*_: Any) -> None:
        raise TimeOut

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(SECONDS)
    try:
        torch.manual_seed(0)
        program = ir.export(sample, sample.inputs(), target=target)
        if "empty" in name:  # holds whatever the memory held
            program.graph = program.graph.replace(random=True)
        # absolute, not in units of the result: the rule that torch's own exporter was measured by
        program.verify(sample.inputs(), rtol=1e-3, atol=1e-4)
        return "pass", ""
    except (ir.UnsupportedOpsError, ir.RefusedError, ir.CaptureError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return "refused", " ".join(lines[:3] if isinstance(error, ir.UnsupportedOpsError) else lines[:1])[:300]
    except ir.MismatchError as error:
        return "wrong", str(error).splitlines()[-1][:300]
    except TimeOut:
        return "failed", f"more than {SECONDS} s"
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
    finally:
        signal.alarm(0)


def page(target: str, results: dict[str, tuple[str, str]]) -> str:
    """The table as Markdown."""
    counts = collections.Counter(status for status, _ in results.values())
    tested = sum(n for status, n in counts.items() if status != "excluded")
    rest = {name: r for name, r in sorted(results.items()) if r[0] != "pass"}
    lines = [
        f"# Operator database on {target}",
        "",
        f"torch {torch.__version__}: {counts['pass']} of {tested} entries pass, {counts['wrong']} give wrong numbers,",
        f"{counts['failed']} fail, {counts['refused']} are refused; {counts['excluded']} are excluded.",
        f"Written by `python -m tests.opinfo --target {target} --write`; what a case is stands there.",
        "",
        "| entry | status | detail |",
        "|---|---|---|",
    ]
    clean = {name: (status, " ".join(detail.replace("|", "/").split())) for name, (status, detail) in rest.items()}
    return "\n".join([*lines, *(f"| {name} | {s} | {d} |" for name, (s, d) in clean.items()), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="onnx")
    parser.add_argument("--match", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {}
    for name, op in entries(options.match):
        results[name] = outcome(name, op, options.target)
        if results[name][0] != "pass":
            print(name, *results[name], flush=True)
    counts = collections.Counter(status for status, _ in results.values())
    print(dict(counts))
    if options.write:
        DOCS.mkdir(exist_ok=True)
        (DOCS / f"opinfo-{options.target}.md").write_text(page(options.target, results))
    return int(bool(counts["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
