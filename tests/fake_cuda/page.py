"""docs/fake-cuda.md, from what the sweep found."""

from __future__ import annotations

from typing import Any

import torch

WHAT = {
    "cases": "the operator table (tests/cases)",
    "models": "whole models (tests/zoo), small variants",
    "wide": "the second zoo (tests/zoo/wide)",
    "operators": "torch's operator database, first sample",
}
HEAD = """# Programs on a GPU that is not there

What can be known of the eager target on CUDA without a GPU? Where each tensor lies, and where the host would wait.

`nox -s fake_cuda` runs every program on fake tensors of a fake `cuda:0`, without passes and with all of them, beside
`ExportedProgram.module()` moved there by torch's `move_to_device_pass`. It takes hours on two busy CPUs:
`-- --part models` runs one part, `-- --resume --write` goes on. Wrong is

- a value, constant or result on another device than torch's own by the same name, or than the GPU without one;
- an op with a tensor on the CPU that torch's own program does not have;
- a wait for the host that torch's own does not have: content read (`item`, `nonzero`, masks among indices, and what
  else torch tags so), copies between host and GPU.

torch's pass moves what names a device by keyword. What is made without naming one, as by `torch.hann_window(8)`, stays
on the CPU in torch's program and is made on the GPU by ours; so it is with `prims::device_put(x, device)`.

What a program reads of content is answered from a run of it on the CPU. `tests/eager/test_fake_cuda.py` is a slice of
this in CI, with faults planted that it must find. Not seen are programs that torch.export does not take, or whose own
module of torch does not run so; they are listed at the end.

"""
CANNOT = """
## What this cannot see

- Numbers. Fake tensors have no content: kernels, their rounding, their strides where torch's fake kernels differ from
  the real ones. `nox -s cuda` compares them on a GPU.
- A kernel that waits by itself without a tag of torch's that says so (a `linalg` check of errors inside a kernel).
- Streams, races and the order of work; those of `Program.capture` are tested with a stand-in
  (`tests/eager/test_capture.py`).
- Memory: allocations, and their peak.
- More than one GPU; half precision; the models' full sizes.
- What a custom kernel of the user's does beyond its fake one.
- The four kernels of CUDA for which torch has no fake one (fused GRU and LSTM cells, convolutions with ReLU): they have
  results of the right shapes here. Kernels that have no fake one but a CPU's run there over zeros.
- Which library a CTC loss is computed by: torch asks cuDNN, which is said to have none.
- The programs below, whose own module of torch does not run so.
"""


def page(found: dict[str, dict[str, Any]], totals: dict[str, int]) -> str:
    """The page; `totals` are how many programs a part has, of which a sweep that was cut off has fewer."""
    lines = [
        "| | programs | run | seen | values | compared by name | misplaced | more waits | waits of torch's own |",
        "|---" * 9 + "|",
    ]
    for part, rows in found.items():
        seen = [r for r in rows.values() if "unseen" not in r]
        sums = [sum(r[k] for r in seen) for k in ("values", "compared")]
        wrong = [sum(len(r[k]) for r in seen) for k in ("misplaced", "waits")]
        numbers = [
            totals.get(part, len(rows)),
            len(rows),
            len(seen),
            *sums,
            *wrong,
            sum(r["torch_waits"] for r in seen),
        ]
        lines.append(f"| {WHAT[part]} | {' | '.join(map(str, numbers))} |")
    lines += ["", f"torch {torch.__version__}; each program twice, without passes and with all of them.", ""]
    left = [WHAT[p] for p in WHAT if len(found.get(p, ())) < totals.get(p, 1)]
    if left:
        lines += [f"Not run to their end when this was written: {', '.join(left)}. `--resume` goes on.", ""]
    wrong_rows = [
        f"| {n} | {'; '.join([*r['misplaced'], *r['waits']])} |"
        for rows in found.values() for n, r in rows.items() if r.get("misplaced") or r.get("waits")
    ]  # fmt: skip
    if wrong_rows:
        lines += ["| wrong | what |", "|---|---|", *wrong_rows]
    unseen: dict[str, list[str]] = {}
    for rows in found.values():
        for name, row in rows.items():
            if "unseen" in row:
                unseen.setdefault(row["unseen"][:160].replace("|", "/"), []).append(name)
    table = [
        "",
        "| not seen | what torch says |",
        "|---|---|",
        *(f"| {', '.join(n)} | {why} |" for why, n in unseen.items()),
    ]
    return HEAD + "\n".join(lines) + CANNOT + "\n".join(table) + "\n"
