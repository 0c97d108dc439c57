"""Our ONNX export beside torch.onnx's, from one ExportedProgram in one process: seconds, nodes, bytes, latency.

Both sides do the same work: `export` stays in memory on both, `save` goes to a file in the same folder on both. The
machine may be busy, and who needs longer is more often interrupted: so times are those of the processor (the system's
part, such as writing, with it), each figure is a minimum, and the two sessions run in turns.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ir

from .entry import Model


def best(call: Callable[[], Any], rounds: int) -> float:
    """Seconds that this process computed in the fastest of `rounds` runs."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def theirs(program: torch.export.ExportedProgram) -> Any:
    """torch's own exporter, silent."""
    with contextlib.redirect_stdout(io.StringIO()):
        return torch.onnx.export(program, dynamo=True, verbose=False)


def against_torch_onnx(model: Model, folder: Path, *, rounds: int = 2, seconds: float = 6.0) -> dict[str, Any]:
    """Both exports of a model, measured.

    Args:
        rounds: runs of each export, of which the fastest counts; ours has one before, which does not count.
        seconds: how long the two sessions take turns, at least.

    Returns:
        `export`, `save` (seconds, the second from the program to the file), `nodes`, `bytes`: each [ours, theirs];
        `latency`: ours by theirs; or `peer_error`, if torch.onnx fails, with theirs left out.
    """
    program = model.export()
    paths = [folder / "ours.onnx", folder / "theirs.onnx"]
    ir.export(program, target="onnx")
    ours = ir.export(program, target="onnx", path=paths[0])
    result: dict[str, Any] = {
        "export": [best(lambda: ir.export(program, target="onnx"), rounds)],
        "save": [best(lambda: ir.export(program, target="onnx", path=paths[0]), rounds)],
        "nodes": [count(ours.artifact)],
        "bytes": [size(paths[0])],
    }
    try:
        started = time.process_time()
        peer = theirs(program)
        first = time.process_time() - started
        result["export"].append(min(first, best(lambda: theirs(program), rounds - 1)))
        result["save"].append(result["export"][1] + best(lambda: peer.save(paths[1]), rounds))
    except Exception as error:
        return result | {"peer_error": _cause(error)}
    result["nodes"].append(count(peer.model))
    result["bytes"].append(size(paths[1]))
    try:
        return result | {"latency": latency(paths, model, seconds)}
    except Exception as error:  # a file that onnxruntime does not take
        return result | {"peer_error": _cause(error)}


def _cause(error: BaseException) -> str:
    """The first error of a chain in a line; torch.onnx's own on top of it only say where to report it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def count(model: Any) -> int:
    """Nodes of an onnx_ir model, those of subgraphs and functions with them."""
    functions = sum(1 for function in model.functions.values() for _ in function.all_nodes())
    return functions + sum(1 for _ in model.graph.all_nodes())


def size(path: Path) -> int:
    """Bytes of a model and of the data beside it."""
    return sum(p.stat().st_size for p in (path, path.with_name(f"{path.name}.data")) if p.exists())


def latency(paths: list[Path], model: Model, seconds: float) -> float:
    """Time of the first file over time of the second, one thread each, at the traced sizes: minima of runs in turns."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [ort.InferenceSession(str(p), options, providers=["CPUExecutionProvider"]) for p in paths]
    tensors = [x.numpy() for x in torch.utils._pytree.tree_leaves(model.inputs(model.sizes))]
    feeds = [dict(zip((i.name for i in s.get_inputs()), tensors, strict=True)) for s in sessions]
    fastest = [float("inf")] * 2
    start, turn = time.perf_counter(), 0
    while turn < 10 or time.perf_counter() - start < seconds:
        for i in ((0, 1), (1, 0))[turn % 2]:
            began = time.thread_time()
            sessions[i].run(None, feeds[i])
            fastest[i] = min(fastest[i], time.thread_time() - began)
        turn += 1
    return fastest[0] / fastest[1]
