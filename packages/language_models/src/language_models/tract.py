"""NNEF: the folder that tract's causal-LM example runs, and the same file in the `tract` package by our own loop.

    model.nnef.tgz        one step of the decoder: tokens and caches in, logits and caches out
    tokenizer.json, ...   as the checkpoint has them

Names, order and symbols: sonos/tract, examples/causal_llm/src/lib.rs, version 0.23. The model finds its positions in
the length of its cache, a batch is one text, and every cache is one Concat, which tract folds into an op with a state
of its own (`transform("transformers_detect_all")`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ir
from ir.errors import RuntimeFailure
from language_models import experts, tract_experts
from language_models.checkpoint import Checkpoint
from language_models.contract import CAUSAL_LLM
from language_models.decoding import Generator
from language_models.folder import Manifest
from language_models.tracing import of_graph, traced
from language_models.weights import GROUP, Plan, to_blocks

FILE = "model.nnef.tgz"
FOLD = "transformers_detect_all"
WEIGHTS = ("f32", "f16", "int4")
EXACT: dict[str, Any] = {}
FEW_BITS: dict[str, Any] = {}


def rounds_experts(options: Mapping[str, Any]) -> bool:
    """True if an export with these options can have experts in few bits."""
    return _has_mixtures(options.get("version"))


def quantised(model: Any, plan: Plan) -> dict[str, Any]:
    """Round the model's weights to blocks of 4 bits; the options that its export then needs."""
    names = {f"model.{name}" for name in to_blocks(model, plan, tract_experts.has_gate)}
    layers = {name for name in names if name.endswith(".weight")}
    laid_out = tuple(f"{name}." for name in names - layers)  # experts, which plain operations read in float only
    return {"packed": lambda name: name in layers or name.startswith(laid_out)}


def write(
    checkpoint: Checkpoint, folder: Path, *, last: bool, weights: str, packed: Any = None, **options: Any
) -> Manifest:
    """Write the model into a folder.

    Raises:
        ExportError: the model cannot be exported; see ir.errors.
    """
    mixed = weights != "f16" and _has_mixtures(options.get("version"))
    with experts.own_experts(checkpoint.model, tract_experts.has_gate) if mixed else nullcontext():
        graph, manifest = traced(checkpoint, CAUSAL_LLM, last, "nnef", weights)
    form = tract_experts.as_moe_ffn if packed is None else partial(tract_experts.as_moe_ffn, block=GROUP)
    graph = experts.mixtures(graph, tract_experts.MIXTURE, form)
    facts = _facts(manifest)
    options["handlers"] = {**of_graph(tract_experts.HANDLERS, graph), **(options.get("handlers") or {})}
    if packed is not None:
        options |= {"weights": "q4_0", "weights_filter": packed}
    ir.export(graph, target="nnef", path=folder / FILE, **{"assertions": facts, **options})
    return replace(manifest, step=FILE)


def _has_mixtures(version: str | None) -> bool:
    """True if the tract that is written for has an op for experts."""
    from nnef_backend.building.operators import OPERATORS
    from nnef_backend.target import Tract

    return Tract(version).has(OPERATORS[tract_experts.NAME])


def _facts(manifest: Manifest) -> list[str]:
    """What tract may assume of the symbols, and its two modes: generating a token, taking a prompt."""
    if manifest.one_by_one:
        return ["P>=0"] if any("P" in s.shape for s in manifest.states) else []
    return ["P>=0", "S>=1", f"S+P<{manifest.context_length}", "tg: S==1", "pp: P==0"]


def load(folder: Path, manifest: Manifest) -> Generator:
    """The model in tract, in a child process; caches are its own state where it can fold them, otherwise arrays.

    Raises:
        RuntimeFailure: tract does not load it.
    """
    from nnef_backend.runtime import tract

    path = folder / manifest.step
    try:
        program = tract.load(path, timeout=None, transforms=() if manifest.one_by_one else [FOLD])
        if program.input_names == [manifest.contract.tokens]:
            return Folded(manifest, program)
        program.close()
        return Generator(manifest, tract.load(path, timeout=None))
    except RuntimeError as error:
        raise RuntimeFailure(f"tract does not load {path}: {error}") from error


class Folded(Generator):
    """A generator whose caches are in tract: what it remembers is a stream, new for each text."""

    def __init__(self, manifest: Manifest, program: Any) -> None:
        super().__init__(manifest, program)
        self._program = program

    def start(self, batch: int) -> Any:
        from nnef_backend.runtime.streaming import Stream

        return Stream(self._program)

    def step(self, tokens: Any, mask: Any, held: Any) -> tuple[Any, Any]:
        return held.run([tokens])[0], held


def usage(folder: Path, manifest: Manifest) -> str:
    """Lines that generate from the folder."""
    lines = (
        "import language_models, transformers\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(folder)!r})\n"
        'tokens = tokenizer("Once upon a time", return_tensors="pt").input_ids\n'
        f"print(tokenizer.decode(language_models.load({str(folder)!r}).generate(tokens)[0]))"
    )
    return lines
