"""The second zoo on every target: `python -m tests.zoo.wide.sweep [--target t] [--resume] [--write] [names...]`.

Each model runs in a fork of this process with a time limit: a crash or an endless loop costs one row, and nothing is
imported twice. What was found goes to build/zoo/wide.jsonl, a line a model, the newest last; --resume tries what has no
line there, --write puts all that is known into docs/models.md, where rows without a line there stay as they are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ir
from tests import kept

from ..entry import Model
from ..measure import TARGETS, run, told
from ..page import wide_rows, with_wide
from ..sweep import DOCS, ROOT
from . import peer
from .models import NAMES, get

FILE = ROOT / "build" / "zoo" / "wide.jsonl"
COLUMNS = (peer.NAME, *TARGETS)
SECONDS = 150  # for one model on all targets
KINDS = ("right", "refused", "wrong", "foreign", "slow")
# folders of the machine that measured
_FOLDER = re.compile(rf"{re.escape(str(ROOT))}/|/[^\s\"]*/(?:site-packages/|tmp[^/\s\"]*/)")
_REFUSALS = {kind.__name__ for kind in vars(ir.errors).values() if isinstance(kind, type)}


def kind(found: dict[str, Any]) -> str:
    """Which of KINDS a target's result is."""
    failure = found.get("failure")
    if failure is None:
        return "right"
    name = failure.partition(":")[0]
    if name == "MismatchError":
        return "wrong"
    return name if name == "slow" else "refused" if name in _REFUSALS else "foreign"


def _child(name: str, targets: list[str], file: Path) -> None:
    """Writes what is known after every step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}

    def keep(**more: Any) -> None:
        found.update(more)
        file.write_text(json.dumps(found))

    model = get(name)
    module = model.build()
    if peer.NAME in targets:
        try:
            keep(**{peer.NAME: peer.run(model, module)})
        except Exception as error:
            keep(**{peer.NAME: {"failure": told(error)}})
        targets = [t for t in targets if t != peer.NAME]
    if targets:
        _ours(model, module, targets, keep)


def _ours(model: Model, module: torch.nn.Module, targets: list[str], keep: Callable[..., None]) -> None:
    args, kwargs = model.inputs(model.sizes)
    start = time.perf_counter()
    try:
        graph = ir.capture(module, args, kwargs, dynamic_shapes=model.dynamic_shapes)
    except Exception as error:
        return keep(**{target: {"failure": told(error)} for target in targets})
    keep(capture=time.perf_counter() - start, ops=len(graph.nodes))
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            try:
                keep(**{target: run(model, module, graph, target, Path(folder))})
            except Exception as error:
                keep(**{target: {"failure": told(error)}})


def measure(name: str, targets: list[str], seconds: float = SECONDS) -> dict[str, Any]:
    """One model in a fork."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        child = multiprocessing.get_context("fork").Process(target=_child, args=(name, targets, file))
        start = time.perf_counter()
        child.start()
        child.join(seconds)
        slow = child.is_alive()
        if slow:
            child.kill()
            child.join()
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    failure = f"slow: not done after {seconds:.0f} s" if slow else f"died: exit code {child.exitcode}"
    for target in targets:
        found.setdefault(target, {"failure": failure})
    return found | {"name": name, "wall": time.perf_counter() - start}


def known() -> dict[str, dict[str, Any]]:
    """The newest of what was found for each model and target."""
    found: dict[str, dict[str, Any]] = {}
    for line in kept.rows(FILE):
        row = json.loads(_FOLDER.sub("", json.dumps(line)))
        found.setdefault(row["name"], {}).update(row)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", action="append", choices=COLUMNS)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--write", action="store_true", help="the table in docs/models.md")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one model on all its targets")
    options = parser.parse_args()
    import timm  # noqa: F401  (once, for all forks)
    import transformers

    transformers.logging.set_verbosity_error()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    targets = options.target or list(COLUMNS)
    old = known() if options.resume else {}
    for name in options.names or NAMES:
        wanted = [t for t in targets if t not in old.get(name, {})]
        if not wanted:
            continue
        found = measure(name, wanted, options.seconds)
        with FILE.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        print(name, *(f"{t}={kind(found[t])}" for t in wanted), f"{found['wall']:.0f} s", flush=True)
    if options.write:
        text = DOCS.read_text()
        found = wide_rows(text)
        for name, row in known().items():
            found.setdefault(name, {}).update(row)
        DOCS.write_text(with_wide(text, {name: found[name] for name in NAMES if name in found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
