"""Files that a server wants beside an artifact, where they are only files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ir.dims import Dim, Expr
from ir.errors import ExportError, OutputError
from ir.files import staged
from ir.graph import Graph, Value

BATCH = 64  # rows that Triton puts together at most, where the file takes any number
_OWN = re.compile(
    r'name: ".*"\nbackend: "onnxruntime"\nmax_batch_size: \d+\n'
    r"(?:(?:in|out)put \[\n(?:  \{ name: .* \},?\n)*\n?\]\n)*(?:dynamic_batching \{ \}\n)?"
)
_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16",
}  # fmt: skip


def check(deploy: str | None, target: str, path: object) -> None:
    """Raise, before anything is exported, for a server that is not known or a path that is not its.

    Raises:
        ValueError: no such server.
        ExportError: the server does not run this target's files.
        OutputError: the path is none of its layout.
    """
    if deploy is None:
        return
    if deploy not in SERVERS:
        raise ValueError(f"deploy={deploy!r:.60}: {', '.join(SERVERS)}")
    if target != "onnx":
        raise ExportError(f"deploy={deploy!r} is for files of target 'onnx', not {target!r}")
    if path is None or not re.fullmatch(r"[^/]+/\d+/model\.onnx", "/".join(Path(str(path)).absolute().parts[-3:])):
        raise OutputError(
            "deploy='triton': the path is REPOSITORY/NAME/VERSION/model.onnx, 'models/detector/1/model.onnx'"
        )
    _check_own(_config(Path(str(path))))


def _config(path: Path) -> Path:
    return path.absolute().parents[1] / "config.pbtxt"


def _check_own(place: Path) -> None:
    """Raises OutputError for a file that holds anything but what `triton_config` writes."""
    if os.path.lexists(place) and not (place.is_file() and _OWN.fullmatch(place.read_text(errors="replace"))):
        raise OutputError(f"{place} holds what no export wrote, and stays as it is: move it away")


def write(deploy: str | None, graph: Graph, path: Path) -> None:
    """Write what the server wants beside the artifact."""
    if deploy is not None:
        SERVERS[deploy](graph, path)


def triton(graph: Graph, path: Path) -> None:
    """`config.pbtxt` in the model's folder (Triton's model configuration, for its backend onnxruntime)."""
    place = _config(path)
    with staged(place, _check_own) as temporary:
        temporary.write_text(triton_config(graph, place.parent.name))


def triton_config(graph: Graph, name: str) -> str:
    """The text of a config.pbtxt.

    Where every input and result has the same dynamic first dimension Triton puts requests together along it, and the
    sizes are those of a row; else each request is one run.
    """
    results = graph.results
    first = {v.type.shape[0] if v.type.shape else None for v in (*graph.inputs, *results.values())}
    rows = len(first) == 1 and isinstance(next(iter(first)), Expr)
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', f"max_batch_size: {BATCH if rows else 0}"]
    named: list[tuple[str, Mapping[str, Value]]] = [("input", {v.name: v for v in graph.inputs}), ("output", results)]
    for kind, values in named:
        parts = [_port(n, v, rows) for n, v in values.items()]
        lines.append(f"{kind} [\n" + ",\n".join(parts) + "\n]")
    if rows:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _port(name: str, value: Value, rows: bool) -> str:
    kind = _TYPES.get(value.type.dtype.name)
    if kind is None:
        raise ExportError(f"{name} is a tensor of {value.type.dtype.name}, which Triton has not")
    dims = [_size(d) for d in value.type.shape[1 if rows else 0 :]]
    # a row without sizes of its own has one number for Triton
    shape = "" if dims else ", reshape: { shape: [ ] }"
    return f'  {{ name: "{name}", data_type: TYPE_{kind}, dims: [ {", ".join(map(str, dims or [1]))} ]{shape} }}'


def _size(dim: Dim) -> int:
    return dim if isinstance(dim, int) else -1


SERVERS: dict[str, Callable[[Graph, Path], None]] = {"triton": triton}
