"""onnxruntime's own profile of a model."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir

from ir.opened import Timed

_WARM_UP = 2  # runs in which onnxruntime lays out its memory


def timed(open_session: Callable[[Any], Any], options: Any, run: Callable[[Any], object], runs: int) -> list[Timed]:
    """The time of each node, by the name that the file gives it; of nodes that onnxruntime made, by its own."""
    with tempfile.TemporaryDirectory(prefix="ir-profile-") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = open_session(options)
        for _ in range(_WARM_UP + runs):
            run(session)
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = event["name"].removesuffix("_kernel_time").removeprefix("fused "), event["args"].get("op_name", "")
            taken[key].append(event["dur"] * 1e-6)
    return [_timed(name, op, times, runs) for (name, op), times in taken.items()]


def _timed(name: str, op: str, times: Sequence[float], runs: int) -> Timed:
    """A node in a loop runs several times in a run."""
    count = max(1, round(len(times) / (_WARM_UP + runs)))
    return Timed(name, op, statistics.median(times[_WARM_UP * count :] or times) * count)


def inlined(model: onnx_ir.Model) -> dict[str, onnx_ir.Node]:
    """The call of a function that each node comes from whose name in onnxruntime begins so.

    onnxruntime puts bodies in the place of calls round by round, those of calls in bodies last: the first body of a
    function has its name, each other one the next number. Calls in branches and loops have another order: none then.
    """
    everywhere = onnx_ir.traversal.RecursiveGraphIterator(model.graph)
    top = [(n, n) for n in model.graph if n.op_identifier() in model.functions]
    if sum(n.op_identifier() in model.functions for n in everywhere) > len(top):
        return {}
    found: dict[str, onnx_ir.Node] = {}
    numbers = itertools.count()
    while top:
        for node, root in top:
            name = f"_inlfunc_{node.op_type}_"
            found[name if name not in found else f"{name}token_{next(numbers)}_"] = root
        top = [
            (inner, root) for node, root in top for inner in model.functions[node.op_identifier()]
            if inner.op_identifier() in model.functions
        ]  # fmt: skip
    return found
