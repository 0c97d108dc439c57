"""Folders of several programs: what stands in them, and each program by name in the runtime of its target.

Models that are more than one decoder (an encoder beside it, an encoder alone) come to the same files on every target,
so that one file of this package says all of a kind.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import ir
from ir.errors import CaptureError, RefusedError, RuntimeFailure, UnsupportedOpsError
from ir.graph import symbols_in
from ir.opening import open_artifact
from ir.plugins import find_target
from ir.target import Target
from language_models.contract import GENAI, Described, element_type
from language_models.folder import UNSOUND, describe, described, inside, no_export
from language_models.generation_settings import likeliest
from language_models.lengths import MOST, check_lengths, check_step, sizes_in
from language_models.references import WEIGHTS_FOLDER, weights_elsewhere

SUFFIXES = {"onnx": ".onnx", "nnef": ".nnef.tgz", "eager": ".pt2"}
HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
Tensors = Mapping[str, torch.Tensor]
Scores = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Part(Described):
    """A program of a folder: its file, and the names of what it takes and gives, in order."""

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Parts:
    """What is in a folder of several programs; `said` is what a kind has to say of itself, plain JSON."""

    kind: str
    target: str
    weights: str
    parts: Mapping[str, Part]
    said: Mapping[str, Any]
    files: tuple[str, ...] = ()
    weights_folder: str = ""  # the way to weights that are not in here

    def write(self, folder: Path) -> None:
        """Write it last: it names all files of the folder."""
        describe(folder, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Parts:
        """The description of a folder; raises CaptureError where there is none."""
        said = described(folder)
        try:
            parts = {n: Part(p["file"], tuple(p["inputs"]), tuple(p["outputs"])) for n, p in said["parts"].items()}
            for part in parts.values():
                inside(folder, part.file)
            for *_, dtype in said["said"].get("remembered", {}).values():
                element_type(dtype)
            found = cls(said["kind"], said["target"], said["weights"], parts, said["said"])
            return replace(found, files=tuple(said["files"]), weights_folder=str(said.get("weights_folder", "")))
        except UNSOUND as error:
            raise no_export(folder, error) from error

    @property
    def floats(self) -> torch.dtype:
        """The element type of floats in the programs."""
        return HALVES.get(str(self.weights), torch.float32)

    def facts(self) -> dict[str, str]:
        """What there is to say of the folder, for a table."""
        return {"task": self.kind, **{n: str(v) for n, v in self.said.items() if isinstance(v, (str, int, float))}}


def write_part(
    module: torch.nn.Module,
    path: Path,
    target: str,
    given: Mapping[str, Any],
    sizes: Mapping[str, Any],
    outputs: Sequence[str],
    names: Mapping[str, str] | None = None,
    positions: int | None = None,
    **options: Any,
) -> Part:
    """Write one program: what it is given by name, its dynamic sizes, and the names of its results.

    The inputs of the file are called as the arguments are, or as `names` has it; those of a mapping `argument.key`.
    `positions` is the longest text that a table of the model's takes.

    Raises:
        ExportError: the module cannot be exported; see ir.errors.
    """
    called = [
        [f"{n}.{key}" for key in v] if isinstance(v, Mapping) else [(names or {}).get(n, n)] for n, v in given.items()
    ]
    graph = ir.capture(
        module,
        kwargs=dict(given),
        dynamic_shapes={n: sizes[n] for n in given},
        input_names=[*itertools.chain(*called)],
        output_names=list(outputs),
    )
    check_lengths(module.model, graph, positions)
    if GENAI.past in sizes_in(graph):  # a step, whose sizes are called as genai's are
        check_step(module.model, graph, GENAI, min(MOST, positions or MOST))
    file = path.with_name(path.name + SUFFIXES[target])
    options = {**({"external_data": True} if target == "onnx" else {}), **options}
    if (packed := options.pop("packed", None)) is not None:  # what tract.quantised says of NNEF's blocks
        options |= {"weights": "q4_0", "weights_filter": packed}
    of_data = symbols_in(tuple(v.type.shape for n in graph.nodes for v in n.outputs)) - sizes_in(graph)
    if target == "onnx" or not of_data:
        ir.export(graph, target=target, path=file, **options)
    else:
        _write_decided_by_data(module.model, graph, file, target, options)
    return Part(file.name, tuple(v.name for v in graph.inputs), tuple(outputs))


def _write_decided_by_data(model: Any, graph: Any, file: Path, target: str, options: Mapping[str, Any]) -> None:
    """Write a program that has sizes of no input (SmolVLM leaves out images of zeros), or say the way out: what targets
    other than ONNX say of such a one, some of them as it is read again, names a file that is gone by then.
    """
    try:
        ir.export(graph, target=target, path=file, **options)
        if target == "eager":
            open_artifact(file, target)
    except (CaptureError, RefusedError, UnsupportedOpsError, RuntimeFailure) as error:
        said = str(error).partition("\n")[0].removeprefix(f"{file}: ")
        raise CaptureError(
            f"{type(model).__name__} has sizes in its {file.name} that depend on the numbers that it is given, which "
            f"target {target!r} does not take ({said}): take target='onnx', which has them"
        ) from error


class Program:
    """A part in its runtime: tensors by name in and out; what it does not take is left out."""

    def __init__(self, folder: Path, part: Part, target: str | Target) -> None:
        self.part = part
        self._run = open_artifact(folder / part.file, target)

    def __call__(self, given: Tensors) -> dict[str, torch.Tensor]:
        results = self._run(*(given[name] for name in self.part.inputs))
        return dict(zip(self.part.outputs, results, strict=True))


def programs(
    folder: Path, manifest: Parts, names: Sequence[str], checkpoint: str | os.PathLike[str] | None = None
) -> list[Program]:
    """Programs of a folder in their runtime; `checkpoint` is the folder of weights that lie elsewhere.

    Raises:
        CaptureError: weights lie elsewhere, and `checkpoint` is not given.
        RuntimeFailure: the runtime does not load one.
    """
    there = weights_elsewhere(folder, manifest.weights_folder, checkpoint)
    options = {"session_options": {WEIGHTS_FOLDER: str(there)}} if there and manifest.target == "onnx" else {}
    target = find_target(manifest.target, options)
    return [Program(folder, manifest.parts[name], target) for name in names]


def greedy(
    tokens: torch.Tensor, said: Mapping[str, Any], count: int, scores: Scores, processors: Sequence[Any]
) -> torch.Tensor:
    """The tokens with so many behind them, each the likeliest; a text that has ended is padded.

    Args:
        said: its `ends` are the tokens that end a text, its `pad` is what stands behind them.
        scores: what gives the scores of the next token, of all tokens so far and those of them that are new.
        processors: what the settings of the checkpoint make of these scores.
    """
    new, ended, ends = tokens, torch.zeros(len(tokens), dtype=torch.bool), torch.tensor(said["ends"])
    for _ in range(count):
        new = likeliest(scores(tokens, new), tokens, processors).masked_fill(ended, said["pad"])[:, None]
        tokens = torch.cat([tokens, new], 1)
        ended |= torch.isin(new[:, 0], ends)
        if ended.all():
            break
    return tokens


def empty_past(said: Mapping[str, Any], prefix: str, batch: int) -> dict[str, torch.Tensor]:
    """A past of no length for each state that a folder says is remembered."""
    return {f"{prefix}.{name}": torch.zeros(batch, heads, 0, width, dtype=element_type(dtype))
            for name, (heads, width, dtype) in said["remembered"].items()}  # fmt: skip
