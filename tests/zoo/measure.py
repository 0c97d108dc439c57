"""One model on some targets, in a process of its own: `python -m tests.zoo.measure NAME FILE --targets onnx`.

The file is JSON, written anew after every target, so that what was found before a crash is kept.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import ir

from .entry import Model
from .models import get
from .peer import against_torch_onnx, count

TARGETS = {"onnx": ".onnx", "nnef": ".nnef.tar", "eager": ".pt2"}
MEMORY = 16 * 2**30  # bytes of data that one model may take: more than the largest needs


def run(model: Model, module: nn.Module, graph: ir.Graph, target: str, folder: Path) -> dict[str, Any]:
    """Export to a file, run that in the target's own runtime at all sizes: seconds, error / scale, or what failed."""
    path = folder / f"{model.name}{TARGETS[target]}"
    sizes: dict[str, int] = {}
    try:
        start = time.perf_counter()
        program = ir.export(graph, target=target, path=path)
        result: dict[str, Any] = {"seconds": time.perf_counter() - start, "bytes": _bytes(path)}
        if target == "onnx":
            result["nodes"] = count(program.artifact)
        worst = 0.0
        for sizes in (model.sizes, *model.other_sizes):
            report = program.verify(*model.inputs(sizes))
            worst = max([worst, *(r.error / max(r.scale, 1e-3) for r in report.rows if not r.skipped)])
        if hasattr(program.runner, "close"):
            program.runner.close()
        return result | {"error": worst}
    except ir.MismatchError as error:
        return {"failure": f"{told(error)}; torch's own float32 is {_rounding(model, module, sizes)} from float64"}
    except ir.ExportError as error:
        return {"failure": told(error)}


@functools.lru_cache(maxsize=1)
def captured(make: Callable[..., Model], *args: Any) -> tuple[Model, ir.Graph]:
    """A model and its checked graph; kept for the next target that asks for the same."""
    model = make(*args)
    inputs, kwargs = model.inputs(model.sizes)
    return model, ir.check(ir.capture(model.build(), inputs, kwargs, dynamic_shapes=model.dynamic_shapes))


def check(target: str, folder: Path, make: Callable[..., Model], *args: Any) -> None:
    """The model that `make(*args)` gives, of either zoo, on one target, for tests.

    Raises:
        ir.ExportError: the export is refused or a number differs.
    """
    model, graph = captured(make, *args)
    program = ir.export(graph, target=target, path=folder / f"{model.name}{TARGETS[target]}", verify=True)
    for sizes in model.other_sizes:
        program.verify(*model.inputs(sizes))


def told(error: Exception) -> str:
    """The error by its class of `ir`, or its own, and what it says."""
    known = next((c for c in type(error).__mro__ if getattr(ir, c.__name__, None) is c), type(error))
    return f"{known.__name__}: {' '.join(str(error).split())[:900]}"


def _bytes(path: Path) -> int:
    found = [p for p in (path, path.with_name(f"{path.name}.data")) if p.exists()]
    return sum(p.stat().st_size for p in found)


def _rounding(model: Model, module: nn.Module, sizes: dict[str, int]) -> str:
    """How far torch's float32 lies from its float64, by the largest magnitude: above this no artifact can be nearer."""
    args, kwargs = model.inputs(sizes)
    exact = copy.deepcopy(module).double()
    wide = tree_map(lambda x: x.double() if x.is_floating_point() else x, (args, kwargs))
    with torch.no_grad():
        pairs = zip(tree_leaves(exact(*wide[0], **wide[1])), tree_leaves(module(*args, **kwargs)), strict=True)
        return f"{max(float((e - a).abs().max() / e.abs().max()) for e, a in pairs):.1e}"


def _on_targets(model: Model, targets: list[str], keep: Callable[..., None]) -> None:
    module = model.build()
    args, kwargs = model.inputs(model.sizes)
    start = time.perf_counter()
    try:
        graph = ir.capture(module, args, kwargs, dynamic_shapes=model.dynamic_shapes)
    except ir.ExportError as error:
        return keep(**{target: {"failure": told(error)} for target in targets})
    keep(capture=time.perf_counter() - start, ops=len(graph.nodes))
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            keep(**{target: run(model, module, graph, target, Path(folder))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--peer", action="store_true", help="measure torch.onnx beside ours")
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    model = get(options.name, small=options.small)
    found: dict[str, Any] = json.loads(options.file.read_text()) if options.file.exists() else {}

    def keep(**more: Any) -> None:
        found.update(more)
        options.file.write_text(json.dumps(found, indent=1))

    if options.targets:
        _on_targets(model, options.targets, keep)
    if options.peer:
        with tempfile.TemporaryDirectory() as folder:
            keep(peer=against_torch_onnx(model, Path(folder)))
    keep(peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    sys.exit(main())
