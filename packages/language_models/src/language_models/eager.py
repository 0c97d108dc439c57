"""Eager: two compiled programs over torch, one for the prompt and one for a token, and a cache of fixed length.

    prompt.pt2           tokens in; logits and what is remembered out
    step.pt2             one token in; it writes into the cache in place
    model.safetensors    the weights of both, once; the .pt2 files have none

The cache has room for more tokens than there are, so a step moves none of it; where a text fills it, it becomes twice
as long. For a model whose attention looks at the length of its cache, the step gives a new one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

import ir
from ir.errors import CaptureError, ExportError, RefusedError
from ir.importer import caches
from ir.importer.pt2.dimension_names import packed
from ir.importer.torch_api import put
from language_models import few_bits
from language_models.checkpoint import Checkpoint
from language_models.contract import GENAI, element_type
from language_models.decoding import Generator
from language_models.folder import Manifest
from language_models.generation_settings import likeliest
from language_models.scratch import save_tensors
from language_models.step import BATCH, NEW, PAST, Step, fresh_cache, is_state, remembered
from language_models.tracing import manifest_of, traced
from language_models.weights import BITS, PORTABLE, Plan, quantise

PROMPT, STEP = "prompt.pt2", "step.pt2"
STORED = "model.safetensors"
WEIGHTS = ("f32", "f16", "bf16", "int8", "int4")
EXACT: dict[str, Any] = {}
FEW_BITS: dict[str, Any] = {}
Stored: TypeAlias = "tuple[dict[str, torch.Tensor], dict[str, str]]"  # weights, and their other names
LENGTH = 16  # of the example's cache
ROOM = 256  # new tokens that a cache has room for at first: a step reads all of it


class Static(Step):
    """A decoder without a past, or with one whose places are all there: those of the future are masked."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past: torch.Tensor | None = None,
        held: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        if past is None or held is None:
            cache = fresh_cache(self.model.config)
            return {"logits": self.logits(input_ids, attention_mask, position_ids, cache), "held": remembered(cache)}
        cache = caches.unflatten([*held.values()], self.context)
        for layer in cache.layers:
            if getattr(layer, "keys", None) is not None:
                _write_in_place(layer, past)
        return {"logits": self.logits(input_ids, attention_mask, position_ids, cache)}


def _write_in_place(layer: Any, past: torch.Tensor) -> None:
    """Let a layer of a cache put the new key behind the past ones, where there is room for it."""

    def update(keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        layer.keys.index_copy_(2, past, keys)
        layer.values.index_copy_(2, past, values)
        return layer.keys, layer.values

    layer.update = update
    layer.get_seq_length = lambda: past[0]
    layer.get_mask_sizes = lambda new: (layer.keys.shape[2], 0)


def rounds_experts(options: Mapping[str, Any]) -> bool:
    """Experts stay in float32."""
    return False


def quantised(model: Any, plan: Plan) -> dict[str, Any]:
    """Put layers of few bits into the model; no options of its export follow.

    The programs of other tasks hold their own weights, which have to be the same for every processor: they become
    floats when such a program is compiled.
    """
    quantise(model, plan, few_bits.FORM if plan.decoder else PORTABLE)
    return {}


def write(checkpoint: Checkpoint, folder: Path, *, last: bool, weights: str) -> Manifest:
    """Write the programs and the weights into a folder; a recurrent model takes its prompt by the step, too.

    Raises:
        ExportError: the model cannot be exported; see ir.errors.
    """
    step = Static(checkpoint.model, last)
    manifest = manifest_of(checkpoint, step, GENAI, "eager", weights)
    ids = torch.ones(BATCH, NEW, dtype=torch.int64)
    places = {"position_ids": torch.arange(NEW).repeat(BATCH, 1)} if manifest.positions else {}
    if not step.recurrent:
        prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **places}
        axes = {0: "batch_size", 1: "sequence_length"}
        _save(step, prompt, dict.fromkeys(prompt, axes), folder / PROMPT)
        _open(folder / PROMPT)
    stored = _token(step, manifest, places, folder / STEP) if writes_in_place(step) else None
    if stored is None:
        graph, _ = traced(checkpoint, GENAI, last, "eager", weights, single=True)
        stored = _stored(graph, folder / STEP)
        _open(folder / STEP)
    save_tensors(stored[0], folder / STORED, stored[1])
    return replace(manifest, step=STEP)


def _token(step: Static, manifest: Manifest, places: Mapping[str, torch.Tensor], path: Path) -> Stored | None:
    """Write the program of a token; None where torch.export or the reader of its file cannot follow the places."""
    mask = {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.int64)} if manifest.mask else {}
    given: dict[str, Any] = {"input_ids": torch.ones(BATCH, 1, dtype=torch.int64), **mask}
    given |= {name: t[:, :1].clone() for name, t in places.items()} | {"past": torch.tensor([PAST])}
    batch = {0: "batch_size"}
    sizes: dict[str, Any] = dict.fromkeys(given, batch) | {"past": None}
    sizes |= dict.fromkeys(mask, batch | {1: "max_length"})
    given["held"] = {n: t if is_state(n) else _room(t, LENGTH) for n, t in step.states.items()}
    sizes["held"] = {n: batch if is_state(n) else batch | {2: "max_length"} for n in step.states}
    try:
        stored = _save(step, given, sizes, path)
        _open(path)
    except ExportError:
        return None
    return stored


def _open(path: Path) -> None:
    """Compile a program as `load` does, less what packs weights, for that would hold them all."""
    try:
        ir.export(path, target="eager", optimize=False)
    except ExportError as error:
        said = str(error).removeprefix(f"{path}: ")
        raise CaptureError(f"the program that torch.export makes of it is not read again: {said}") from error


def writes_in_place(step: Static) -> bool:
    """True if a token has the same logits where the cache is longer than the text; some models look at its length."""
    held = {n: t if is_state(n) else _room(t, LENGTH) for n, t in step.states.items()}
    tokens, places = torch.ones(BATCH, 1, dtype=torch.int64), torch.full((BATCH, 1), PAST)
    at = places if step.takes_positions else None
    whole = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    whole[:, PAST + 1 :] = 0  # outside of torch.export transformers leaves out a mask of ones
    masks = (whole[:, : PAST + 1], whole) if step.takes_mask else (None, None)
    copies = {n: t.clone() for n, t in held.items()}
    try:
        with torch.no_grad():
            grown = Step.forward(step, tokens, masks[0], at, step.states)["logits"]
            written = step(tokens, masks[1], at, torch.tensor([PAST]), copies)["logits"]
    except Exception:  # it does not take such a cache at all
        return False
    return torch.allclose(grown, written, rtol=1e-3, atol=1e-3 * float(grown.abs().max()))


def _room(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """A copy with places for so many tokens."""
    made = tensor.new_zeros(*tensor.shape[:2], length, *tensor.shape[3:])
    made[:, :, : tensor.shape[2]] = tensor
    return made


def _save(step: Static, example: dict[str, Any], sizes: Any, path: Path) -> Stored:
    """Write a program without its weights; those come back by name, and what other names they have."""
    with warnings.catch_warnings():
        # it is written in place
        warnings.filterwarnings("ignore", message="the model changes the .* that it is given and does not return it")
        graph = ir.capture(step, kwargs=example, dynamic_shapes=sizes)
    return _stored(graph, path)


def _stored(graph: Any, path: Path) -> Stored:
    program = graph.context.program
    named = dict(program.state_dict)
    first: dict[Any, str] = {}
    for name, tensor in named.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    others = {name: own for name, t in named.items() if (own := first[t.data_ptr(), t.shape]) != name}
    _reads_one_token(program)
    # a tensor of one number in the place of each weight: its shape is known, its contents come at load
    put(program, state_dict={n: _hollow(t) for n, t in named.items()})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No complete tensor found")  # none is meant to be whole
        torch.export.save(program, path, extra_files=packed(graph.context.bodies.symbols.names))
    return {n: t.detach() for n, t in named.items() if n not in others}, others


def _reads_one_token(program: Any) -> None:
    """A text of one token has no past; torch.export takes a past to be 2 or longer, and the text to be 3."""
    ranges = program.range_constraints
    for symbol, found in ranges.items():
        if found.lower == 3:
            ranges[symbol] = type(found)(2, found.upper)  # torch's least, which stands for sizes of 0 and 1 as well


def _hollow(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.detach().new_zeros(()).expand(tensor.shape)
    return nn.Parameter(made, requires_grad=False) if isinstance(tensor, nn.Parameter) else made


def load(folder: Path, manifest: Manifest, **options: Any) -> Generator:
    """The model, compiled for one text at a time if `sizes` names no other `batch_size`; others run as well.

    Args:
        options: those of `eager_backend.Eager`.

    Raises:
        CaptureError: a file is not there, or is damaged.
        RefusedError: weights of few bits on another device than the CPU.
    """
    if manifest.weights in BITS and torch.device(options.get("device", "cpu")).type != "cpu":
        raise RefusedError(
            f"weights in {manifest.weights} are multiplied by torch's kernels for the CPU: leave device= out, or "
            "export the checkpoint with weights='bf16'"
        )
    missing = [name for name in (PROMPT, STEP) if name in manifest.files and not (folder / name).is_file()]
    if missing:
        raise CaptureError(f"{folder / missing[0]}: there is no such file; export the checkpoint again")
    files = [folder / name for name in (PROMPT, STEP) if (folder / name).is_file()]
    try:
        tensors = safetensors.torch.load_file(folder / STORED)
        with safetensors.safe_open(folder / STORED, "pt") as opened:
            others = opened.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise CaptureError(f"{folder / STORED}: {error}") from error
    for name in [n for n in tensors if n.endswith(f".{few_bits.INT4}")]:
        tensors[name] = few_bits.laid_out(tensors[name])
    tensors |= {name: tensors[own] for name, own in others.items()}
    programs = {}
    options.setdefault("sizes", {GENAI.batch: 1})
    for file in files:
        programs[file.name] = ir.export(file, target="eager", **options)
        programs[file.name].artifact.load_state_dict(tensors, strict=False, assign=True)
    made = Compiled(manifest, programs[STEP], programs.get(PROMPT))
    others = 1 + manifest.mask + manifest.positions + (not made.grows)
    manifest.check(folder, [v.type.shape for v in programs[STEP].graph.inputs[others:]])
    return made


class Compiled(Generator):
    """A generator that writes into its cache in place, or that gets a new cache from each step (`grows`)."""

    def __init__(self, manifest: Manifest, step: ir.Exported, prompt: ir.Exported | None) -> None:
        super().__init__(manifest, step)
        self.programs = step.artifact, None if prompt is None else prompt.artifact
        self.grows = "past" not in [v.name for v in step.graph.inputs]

    @torch.inference_mode()
    def _continued(self, tokens: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
        step, _ = self.programs
        batch, past = tokens.shape
        length = past + count
        seen = torch.ones(batch, length, dtype=torch.int64)
        seen[:, :past] = torch.from_numpy(mask)
        places = (seen.cumsum(1) - 1).clip(0)
        text = torch.full((batch, length), self.manifest.pad)
        text[:, :past] = torch.from_numpy(tokens)
        ends, ended = torch.tensor(self.manifest.eos), torch.zeros(batch, dtype=torch.bool)
        room = min(length, past + ROOM)
        window = seen[:, :room].contiguous()
        processors = self.settings.processors(text[:, :past], count, seen[:, :past])
        logits, held = self._first(text[:, :past], window, places)
        for at in range(past, length):
            token = likeliest(logits[:, -1], text[:, :at], processors)
            text[:, at] = token.masked_fill(ended, self.manifest.pad)
            ended |= torch.isin(token, ends)
            if ended.all() or at == length - 1:
                break
            if at == room:
                room = min(length, 2 * room)
                window = seen[:, :room].contiguous()
                held = held if self.grows else self._with_room(held, room)
            if self._anew(at + 1):
                logits, held = self._first(text[:, : at + 1], window, places)
                continue
            logits, *new = step.run(*self._fed(text, window, places, at, held))
            held = new[: len(held)] if self.grows else held
        return text[:, past : at + 1].numpy()

    @torch.inference_mode()
    def logits(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The logits after each token of a text, fed one by one."""
        mask = torch.ones_like(input_ids)
        places = mask.cumsum(1) - 1
        logits, held = self._first(input_ids[:, :1], mask, places)
        found = [logits[:, -1:]]
        for at in range(1, input_ids.shape[1]):
            logits, *new = self.programs[0].run(*self._fed(input_ids, mask, places, at, held))
            held = new[: len(held)] if self.grows else held
            found.append(logits[:, -1:])
        return torch.cat(found, 1)

    def _fed(self, tokens: Any, mask: Any, places: Any, at: int, held: list[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs of a step that reads the token at a place."""
        given = [mask[:, : at + 1] if self.grows else mask] if self.manifest.mask else []
        given += [places[:, at : at + 1]] if self.manifest.positions else []
        given += [] if self.grows else [torch.tensor([at])]
        return [tokens[:, at : at + 1], *given, *held]

    def _with_room(self, held: list[torch.Tensor], length: int) -> list[torch.Tensor]:
        """What is remembered, keys and values with places for so many tokens."""
        past, states = self.manifest.contract.past, self.manifest.states
        return [_room(t, length) if past in s.shape else t for t, s in zip(held, states, strict=True)]

    def _first(self, tokens: Any, mask: Any, places: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits after the prompt, and what is remembered of it with room for the rest."""
        step, prompt = self.programs
        batch, past = tokens.shape
        length, names = mask.shape[1], self.manifest.contract
        if prompt is not None:
            given = [places[:, :past]] if self.manifest.positions else []
            logits, *found = prompt.run(tokens, mask[:, :past].contiguous(), *given)
            found = found[: len(self.manifest.states)]  # behind them are buffers that each call overwrites
            return logits, found if self.grows else self._with_room(found, length)
        sizes = {names.batch: batch, names.past: 0 if self.grows else length}
        held = [
            torch.zeros([sizes[d] if isinstance(d, str) else d for d in s.shape], dtype=element_type(s.dtype))
            for s in self.manifest.states
        ]
        fixed = [names.past not in s.shape for s in self.manifest.states]
        for at in range(past):
            logits, *new = step.run(*self._fed(tokens, mask, places, at, held))
            held = new[: len(held)] if self.grows else held
            for t in (t for t, one in zip(held, fixed, strict=True) if one):  # of padding nothing is remembered
                t *= mask[:, at].view(-1, *[1] * (t.dim() - 1))
        return logits, held


def usage(folder: Path, manifest: Manifest) -> str:
    """Lines that generate from the folder."""
    return (
        "import language_models, transformers\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(folder)!r})\n"
        'tokens = tokenizer("Once upon a time", return_tensors="pt").input_ids\n'
        f"print(tokenizer.decode(language_models.load({str(folder)!r}).generate(tokens)[0]))"
    )
