"""Checking and running standard NNEF 1.0.5 with the Khronos tools: their parser, shape inference and
interpreter.

The tools and torch, on which the interpreter stands, are imported at the first use.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nnef_backend.errors import InputError, KhronosError
from nnef_backend.format import archive
from nnef_backend.format.document import without_comments


@contextmanager
def _as_folder(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield path
    else:
        with tempfile.TemporaryDirectory() as folder:
            archive.extract(path, Path(folder))
            yield Path(folder)


def check(path: str | Path) -> Any:
    """Parse an artifact, read its tensors and infer every shape; gives the `nnef.Graph`.

    Raises:
        KhronosError: the parser or the shape inference refused it.
        DocumentError: it is no artifact.
    """
    with _as_folder(Path(path)) as folder:
        return _checked(folder, str(path))


def run(path: str | Path, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Run an artifact in the Khronos interpreter on arrays by input name; gives arrays by output name.

    Raises:
        InputError: the names or shapes of the inputs are not those of the graph.
        KhronosError: the parser, the shape inference or the interpreter refused it.
        DocumentError: it is no artifact.
    """
    from nnef_tools.interpreter.pytorch import Interpreter

    with _as_folder(Path(path)) as folder:
        graph = _checked(folder, str(path))
        arrays = [np.asarray(value) for value in _ordered(graph, inputs, str(path))]
        try:
            results = Interpreter(str(folder), device="cpu", decomposed=_own_fragments(folder))(arrays)
        except Exception as error:
            raise KhronosError(f"{path}: the Khronos interpreter failed: {error}", model=str(path)) from error
    return {str(name): results[name] for name in graph.outputs}


def _checked(folder: Path, path: str) -> Any:
    import nnef

    try:
        quantisation = folder / "graph.quant"
        graph = nnef.parse_file(
            os.fspath(folder / archive.GRAPH),
            os.fspath(quantisation) if quantisation.is_file() else None,
            None,
            _own_fragments(folder),
        )
        _check_labels(graph, folder, path)
        nnef.infer_shapes(graph)
    except KhronosError:
        raise
    except Exception as error:
        # The parser raises its own class, shape inference AssertionError and ValueError.
        raise KhronosError(f"{path}: {error}", model=path) from error
    return graph


def _own_fragments(folder: Path) -> list[str]:
    """The fragments that a graph defines: the parser must put in their bodies, or no shape is inferred for them."""
    text = (folder / archive.GRAPH).read_text(encoding="utf-8")
    return re.findall(r"^\s*fragment\s+(\w+)", without_comments(text), re.MULTILINE)


def _check_labels(graph: Any, folder: Path, path: str) -> None:
    import nnef

    for operation in graph.operations:
        if operation.name != "variable":
            continue
        label, shape = operation.attribs["label"], list(operation.attribs["shape"])
        file = folder / f"{label.lstrip('/')}.dat"
        if not file.is_file():
            raise KhronosError(f"{path}: no tensor file for the label {label!r}", model=path, operation="variable")
        with file.open("rb") as stream:
            stored = nnef.read_tensor(stream).shape
        if list(stored) != shape:
            raise KhronosError(
                f"{path}: {label!r} is declared {shape}, but its file holds {list(stored)}",
                model=path,
                operation="variable",
            )


def _ordered(graph: Any, inputs: Mapping[str, Any], path: str) -> list[Any]:
    names = [str(name) for name in graph.inputs]
    if set(names) != set(inputs):
        raise InputError(f"{path} takes the inputs {names}, not {list(inputs)}")
    for name in names:
        declared, given = list(graph.tensors[name].shape), list(np.shape(inputs[name]))
        if declared != given:
            raise InputError(f"{path}: the input {name} has shape {given}, but {declared} is declared")
    return [inputs[name] for name in names]
