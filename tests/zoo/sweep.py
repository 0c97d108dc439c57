"""Every model on every target against torch, and its ONNX file beside torch.onnx's: `python -m tests.zoo.sweep`.

Options: [--first] [--small] [--print] [--resume] [--peer] [--target t] [--ray ADDRESS] [names...]. Each model runs in a
process of its own, so its memory is given back and a crash costs one row. What was measured lies in build/zoo/ as JSON;
--resume keeps it and measures only what is missing. Without --print the table goes to docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.pool import pool

from . import FIRST, NAMES
from .measure import TARGETS
from .page import failures, page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "models.md"
SECONDS = 900  # for one model


class Worker:
    """Measures one model after another, each in a child process."""

    def __init__(self, folder: Path, small: bool) -> None:
        self.folder, self.small = folder, small

    def ask(self, item: tuple[str, list[str], bool]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was found of a model; a child that dies leaves a failure on the targets it did not come to, apart."""
        name, targets, peer = item
        file = self.folder / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        flags = ["--peer"] * peer + ["--small"] * self.small
        command = [sys.executable, "-m", "tests.zoo.measure", name, str(file), *flags, "--targets", *targets]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
            code, last = done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
        except subprocess.TimeoutExpired:
            code, last = -1, f"not done after {SECONDS} s"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        lost = [t for t in targets if t not in found] if code else []
        return found, {t: {"failure": f"died: {last[:300]}"} for t in lost}

    def close(self) -> None:
        """Nothing is left open."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", action="store_true", help="the core group only")
    parser.add_argument("--small", action="store_true", help="the small variants")
    parser.add_argument("--print", action="store_true", help="leave docs/models.md alone")
    parser.add_argument("--resume", action="store_true", help="keep what build/zoo/ has")
    parser.add_argument("--peer", action="store_true", help="torch.onnx beside ours: seconds, nodes, latency")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--ray", metavar="ADDRESS", help="over the CPUs of a Ray cluster; local: of this machine")
    options = parser.parse_args()
    folder = ROOT / "build" / "zoo" / ("small" if options.small else "full")
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    missing: list[tuple[str, list[str], bool]] = []
    for name in options.names or (FIRST if options.first else NAMES):
        file = folder / f"{name}.json"
        if not options.resume:
            file.unlink(missing_ok=True)
        rows[name] = stored(file)
        targets = [target for target in options.target or TARGETS if target not in rows[name]]
        peer = options.peer and "peer" not in rows[name]
        if targets or peer:
            missing.append((name, targets, peer))
    for (name, *_), (found, died) in pool(partial(Worker, folder, options.small), missing, ray=options.ray):
        rows[name] |= found
        (folder / f"{name}.json").write_text(json.dumps(rows[name], indent=1))  # measured elsewhere, perhaps
        rows[name] |= died  # --resume tries it again
        print(name, json.dumps(rows[name]), flush=True)
    if not options.print:
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(page(rows, small=options.small))
    wrong = failures(rows)
    print("\n".join(f"{name} on {target}: {reason}" for name, target, reason in wrong) or "no failures")
    return int(bool(wrong))


def stored(file: Path) -> dict[str, Any]:
    """What is known of a model; nothing of a file that was cut off while it was written."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found


if __name__ == "__main__":
    sys.exit(main())
