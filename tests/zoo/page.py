"""docs/models.md, from what the sweep measured."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .measure import TARGETS

Rows = Mapping[str, Mapping[str, Any]]

HEAD = """# Models

Random weights, {size}. Each artifact is run in its own runtime at the traced sizes and at two others and compared with
torch {torch} ({machine}, {threads} threads); batch, and for sequences length, are dynamic. Written by `nox -s models`.

## On every target

Seconds from the captured graph to the written file; the largest error over the largest magnitude of that result. An
empty cell was not run at full size; the small variants equal torch on every target (tests/integration).

"""

PEER = """
## ONNX beside torch.onnx

From the same ExportedProgram in the same process: ours / `torch.onnx.export(program, dynamo=True)`. "Export" stays in
memory on both sides, "save" is export and file. Seconds are processor time, minima; latency is onnxruntime on one
thread, ours over theirs, both sessions alive and run in turns.

"""


WIDE = """
## The second zoo

{count} further architectures in one small size (tests/zoo/wide): {right}.
The largest error over the largest magnitude at the traced sizes and at two others. torch.onnx gets the module, and
onnxruntime runs what comes out at the same sizes. Written by `python -m tests.zoo.wide.sweep --write`.

"""


WIDE_TARGETS = (*TARGETS, "torch.onnx")


def with_wide(text: str, rows: Rows) -> str:
    """The page with its section on the second zoo written anew."""
    good = {target: sum("error" in found.get(target, {}) for found in rows.values()) for target in WIDE_TARGETS}
    right = ", ".join(f"{target} {n} right" for target, n in good.items())
    body = (
        [name, str(found.get("ops", "")), *(_wide(found.get(t, {})) for t in WIDE_TARGETS)]
        for name, found in rows.items()
    )
    reasons = [f"- {name} on {target}: {reason[:300]}" for name, target, reason in failures(rows)]
    table = _table(["model", "ops", *WIDE_TARGETS], body) + "\n".join(["\nWhat did not come out:\n", *reasons, ""])
    return text.partition(WIDE.partition("\n\n")[0])[0] + WIDE.format(count=len(rows), right=right) + table


def wide_rows(text: str) -> dict[str, dict[str, Any]]:
    """What the page says of the second zoo: for rows that are not measured again."""
    section = text.partition(WIDE.partition("\n\n")[0])[2]
    reasons = dict(re.findall(r"^- (\S+ on \S+): (.*)$", section, re.MULTILINE))
    found: dict[str, dict[str, Any]] = {}
    for line in section.splitlines():
        name, ops, *cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else [""] * 2
        if len(cells) != len(WIDE_TARGETS) or name == "model":
            continue
        found[name] = {"ops": ops} if ops else {}
        for target, cell in zip(WIDE_TARGETS, cells, strict=True):
            other = "MismatchError" if "differs" in cell else "no"
            failed = {"failure": reasons.get(f"{name} on {target}", other)}
            found[name] |= {} if not cell else {target: failed if cell.startswith("**") else {"error": float(cell)}}
    return found


def _wide(result: Mapping[str, Any]) -> str:
    if not result:
        return ""
    differs = result.get("failure", "").startswith("MismatchError")
    return f"{result['error']:.1e}" if "error" in result else "**differs**" if differs else "**no**"


def failures(rows: Rows) -> list[tuple[str, str, str]]:
    """Model, target and reason of whatever did not come out equal to torch."""
    return [
        (name, target, found[target]["failure"])
        for name, found in rows.items()
        for target in TARGETS
        if "failure" in found.get(target, {})
    ]


def page(rows: Rows, *, small: bool) -> str:
    """The page as Markdown."""
    head = HEAD.format(
        size="small variants" if small else "full sizes",
        torch=torch.__version__,
        machine=platform.machine(),
        threads=torch.get_num_threads(),
    )
    targets = ["model", "ops", *(f"{target}: s \\| error" for target in TARGETS)]
    text = head + _table(targets, (_targets(name, found) for name, found in rows.items()))
    reasons = [f"- {name} on {target}: {reason}" for name, target, reason in failures(rows)]
    text += "\n".join(["\nWhat did not come out:\n", *reasons, ""]) if reasons else ""
    measured = {name: found["peer"] for name, found in rows.items() if "peer" in found}
    return text + (PEER + peer_table(measured) if measured else "")


def _targets(name: str, found: Mapping[str, Any]) -> list[str]:
    cells = [name, str(found.get("ops", ""))]
    for target in TARGETS:
        result = found.get(target, {})
        good = f"{result['seconds']:.2f} \\| {result['error']:.1e}" if "error" in result else ""
        cells.append(good or ("**no**" if result else ""))
    return cells


def peer_table(measured: Rows) -> str:
    """What tests.zoo.peer found for each model, ours / theirs, with the geometric means of the ratios."""
    head = ["model", "nodes", "MB", "export s", "ratio", "save s", "ratio", "latency"]
    body = [_peer_cells(name, found) for name, found in measured.items()]
    both = [found for found in measured.values() if len(found["export"]) == 2]
    ran = [found["latency"] for found in both if "latency" in found]
    ratios = {key: [found[key][1] / found[key][0] for found in both] for key in ("export", "save")}
    export, save = (f"**{_mean(r):.1f}**, least {min(r):.1f}" if r else "" for r in ratios.values())
    latency = f"**{_mean(ran):.3f}**, most {max(ran):.3f}" if ran else ""
    body.append(["geometric mean", "", "", "", export, "", save, latency])
    reasons = [
        f"- {name}: {found['peer_error'].partition(' While executing')[0]}"
        for name, found in measured.items()
        if "peer_error" in found
    ]
    return _table(head, body) + "\n".join(["\nWhat torch.onnx does not do:\n", *reasons, ""] if reasons else [])


def _peer_cells(name: str, found: Mapping[str, Any]) -> list[str]:
    def pair(key: str, form: str, scale: float = 1.0) -> str:
        return " / ".join(format(value * scale, form) for value in found[key])

    def ratio(key: str) -> str:
        return f"{found[key][1] / found[key][0]:.1f}" if len(found[key]) == 2 else ""

    latency = f"{found['latency']:.3f}" if "latency" in found else ""
    seconds = (pair("export", ".3f"), ratio("export"), pair("save", ".3f"), ratio("save"))
    return [name, pair("nodes", "d", 1), pair("bytes", ".1f", 1e-6), *seconds, latency]


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def _table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    titles = " | ".join(head)
    lines = [f"| {titles} |", f"|{'---|' * (titles.count(' | ') + 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in body), ""])
