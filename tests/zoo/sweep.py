"""Every model on every target against torch, as a table: `python -m tests.zoo.sweep [--first] [--small] [names...]`.

Without names all models run; the table goes to docs/models.md unless --print is given. A model is captured once; its
artifact runs in its real runtime at the traced sizes and at two others.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import ir
from tests.zoo import FIRST, NAMES, Model, get

TARGETS = {"onnx": ".onnx", "nnef": ".nnef.tar", "eager": ".pt2"}
DOCS = Path(__file__).parents[2] / "docs" / "models.md"


def row(model: Model, target: str, graph: ir.Graph, folder: Path) -> list[str]:
    """One line of the table: name, target, ops, seconds, error or what went wrong."""
    start = time.perf_counter()
    try:
        program = ir.export(graph, target=target, path=folder / f"{model.name}{TARGETS[target]}")
        seconds = time.perf_counter() - start
        worst = 0.0
        for sizes in (model.sizes, *model.other_sizes):
            report = program.verify(*model.inputs(sizes))
            worst = max(worst, *(r.error / max(r.scale, 1e-3) for r in report.rows))
        if hasattr(program.runner, "close"):
            program.runner.close()
        return [model.name, target, str(len(graph.nodes)), f"{seconds:.2f}", f"{worst:.1e}"]
    except ir.ExportError as error:
        reason = str(error).strip().replace("|", "/").splitlines()
        return [model.name, target, str(len(graph.nodes)), "", f"{type(error).__name__}: {' '.join(reason)[:300]}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--target", action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[list[str]] = []
    for name in options.names or (FIRST if options.first else NAMES):
        model = get(name, small=options.small)
        args, kwargs = model.inputs(model.sizes)
        start = time.perf_counter()
        graph = ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes)
        captured = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            for target in options.target or TARGETS:
                rows.append(row(model, target, graph, Path(folder)))
                print(f"{captured:6.2f} s  " + "  ".join(rows[-1]), flush=True)
    if not options.print:
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(page(rows, options.small))
    return int(any("Error" in r[-1] for r in rows))


def page(rows: list[list[str]], small: bool) -> str:
    """The table as Markdown, with what it was measured on."""
    head = [
        "model",
        "target",
        "ops in the graph",
        "export s (from the captured graph, written)",
        "largest error / scale",
    ]
    size = "small variants" if small else "full sizes"
    lines = [
        "# Models",
        "",
        f"Random weights, {size}, each artifact run in its own runtime at the traced sizes and at two others and",
        f"compared with torch {torch.__version__} ({platform.machine()}, {torch.get_num_threads()} threads).",
        "Written by `nox -s models`.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows), ""])


def check(name: str, target: Any, folder: Path, *, small: bool = True) -> None:
    """One model on one target, for tests.

    Raises:
        ir.ExportError: the export is refused or a number differs.
    """
    model = get(name, small=small)
    args, kwargs = model.inputs(model.sizes)
    graph = ir.check(ir.capture(model.build(), args, kwargs, dynamic_shapes=model.dynamic_shapes))
    program = ir.export(graph, target=target, path=folder / f"{name}{TARGETS[target]}", verify=True)
    for sizes in model.other_sizes:
        program.verify(*model.inputs(sizes))


if __name__ == "__main__":
    sys.exit(main())
