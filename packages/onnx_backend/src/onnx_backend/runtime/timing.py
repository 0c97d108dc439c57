"""onnxruntime's own profile of a model."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir

from ir.opened import Timed

_WARM_UP = 2  # runs in which onnxruntime lays out its memory
_HOLDERS = ("If", "Loop", "Scan")  # whose time holds that of the nodes in their graphs
_INLINED = "_inlfunc_"  # how the names of nodes begin that stand in the place of a call


def timed(open_session: Callable[[Any], Any], options: Any, run: Callable[[Any], object], runs: int) -> list[Timed]:
    """The time of each node, by the name that the file gives it; of nodes that onnxruntime made, by its own.

    Those of a body in the place of a call in a branch or a loop have the name of the node that holds it before theirs:
    each graph numbers its calls by itself.
    """
    with tempfile.TemporaryDirectory(prefix="ir-profile-") as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = open_session(options)
        for _ in range(_WARM_UP + runs):
            run(session)
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, op, microseconds in _kernels(events):
        taken[name, op].append(microseconds * 1e-6)
    return [_timed(name, op, times, runs) for (name, op), times in taken.items()]


def _kernels(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, float]]:
    """Name, op and own time of each kernel: what a branch or a loop holds is no time of its own."""
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    found: list[tuple[str, str, float]] = []
    holders: list[tuple[int, int]] = []  # the open ones: where each ends, and its place in `found`
    for event in sorted(kernels, key=lambda e: (e["ts"], -e["dur"])):
        name = event["name"].removesuffix("_kernel_time").removeprefix("fused ")
        op = event["args"].get("op_name", "")
        while holders and holders[-1][0] <= event["ts"]:
            holders.pop()
        if holders:
            holder, kind, rest = found[holders[-1][1]]
            found[holders[-1][1]] = holder, kind, max(0.0, rest - event["dur"])
            name = f"{holder}/{name}" if name.startswith(_INLINED) else name
        if op in _HOLDERS:
            holders.append((event["ts"] + event["dur"], len(found)))
        found.append((name, op, event["dur"]))
    return found


def _timed(name: str, op: str, times: Sequence[float], runs: int) -> Timed:
    """A node in a loop runs several times in a run."""
    count = max(1, round(len(times) / (_WARM_UP + runs)))
    return Timed(name, op, statistics.median(times[_WARM_UP * count :] or times) * count)


def values(model: onnx_ir.Model, is_meant: Callable[[onnx_ir.Node], bool]) -> dict[str, str]:
    """The value that each node makes, by the node's name in a profile; of calls, those that are meant.

    That of a node in a branch or a loop stands behind the value of the node that holds it, and the number of its graph
    where that holds several.
    """
    calls: dict[onnx_ir.Node, list[str]] = defaultdict(list)
    for name, call in inlined(model).items():
        calls[call] += [name] if is_meant(call) else []
    found: dict[str, str] = {}
    for graph, _, path in _graphs(model.graph, "", ""):
        for node in graph:
            value = node.outputs[0].name
            found |= {n: path + value for n in (node.name, *calls[node]) if n and value}
    return found


def inlined(model: onnx_ir.Model) -> dict[str, onnx_ir.Node]:
    """The call of a function that each node comes from whose name in a profile begins so."""
    pairs = [(holder + n, call) for g, holder, _ in _graphs(model.graph, "", "") for n, call in _calls(model, g)]
    names = [name for name, _ in pairs]
    return {name: call for name, call in pairs if names.count(name) == 1}


def _graphs(graph: onnx_ir.Graph, holder: str, path: str) -> Iterator[tuple[onnx_ir.Graph, str, str]]:
    """The graph and those in it, with the name of the node that holds each and the path of its values."""
    yield graph, holder, path
    for node in graph:
        inner = [a.as_graph() for a in node.attributes.values() if a.type is onnx_ir.AttributeType.GRAPH]
        for i, one in enumerate(inner):
            number = f"{i}/" if len(inner) > 1 else ""
            yield from _graphs(one, f"{node.name}/", f"{path}{node.outputs[0].name}/{number}")


def _calls(model: onnx_ir.Model, graph: onnx_ir.Graph) -> Iterator[tuple[str, onnx_ir.Node]]:
    """How the names begin of the nodes that onnxruntime puts in the place of a graph's calls.

    It does so round by round, calls in bodies last: the first body of a function in a graph has its name, each other
    one the next number.
    """
    known: set[str] = set()
    numbers = itertools.count()
    top = [(n, n) for n in graph if n.op_identifier() in model.functions]
    while top:
        for node, root in top:
            name = f"{_INLINED}{node.op_type}_"
            name = name if name not in known else f"{name}token_{next(numbers)}_"
            known.add(name)
            yield name, root
        top = [
            (inner, root) for node, root in top for inner in model.functions[node.op_identifier()]
            if inner.op_identifier() in model.functions
        ]  # fmt: skip
