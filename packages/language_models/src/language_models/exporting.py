"""The one call: a checkpoint in, a folder that generates text out."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from ir import stored
from ir.errors import RefusedError
from ir.files import size_text, writable
from language_models.checkpoint import converted, copy_tokenizer, open_checkpoint
from language_models.comparing import check
from language_models.finite import check_finite, clamping
from language_models.folder import Manifest, check_files, check_place, described, load_call, new_folder, no_export
from language_models.lengths import without_expected_warnings
from language_models.longrope import longest_short
from language_models.loss import LONGEST, Loss, logits_of, loss, tokens_of
from language_models.parts import Parts
from language_models.references import note_files
from language_models.tasks import AUTO, WRITERS
from language_models.tracing import told_of
from language_models.weight_files import stored_file
from language_models.weights import Plan

TARGETS = {"onnx": "language_models.onnx_genai", "nnef": "language_models.tract", "eager": "language_models.eager"}
P = ParamSpec("P")
T = TypeVar("T")
FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Exported:
    """A folder that was written, and what is in it."""

    path: Path
    manifest: Manifest | Parts
    usage: str
    loss: Loss | None = None
    compared: bool = False  # with what the model itself gives

    def summary(self) -> dict[str, str]:
        """What there is to say of the folder, for a table."""
        sizes = {name: (self.path / name).stat().st_size for name in self.manifest.files}
        return {
            "folder": str(self.path),
            "size": size_text(sum(sizes.values())),
            "largest file": max(sizes, key=lambda name: sizes[name]),
            "weights": self.manifest.weights,
            **self.manifest.facts(),
            **({} if self.loss is None else {"loss": str(self.loss)}),
        }

    def load(self) -> Any:
        """The model in its runtime; `generate` it."""
        weights = self.manifest.weights_folder
        return load(self.path, **({"checkpoint": self.path / weights} if weights else {}))


def _keeping_modes(function: Callable[P, T]) -> Callable[P, T]:
    """Of a model in memory each module is left in training or not, as it was."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        source = args[0] if args else kwargs.get("source")
        modes = [(m, m.training) for m in source.modules()] if isinstance(source, torch.nn.Module) else []
        try:
            return function(*args, **kwargs)
        finally:
            for module, training in modes:
                module.training = training

    return call


@_keeping_modes
def export(
    source: Any,
    *,
    path: str | os.PathLike[str],
    target: str = "onnx",
    weights: str = "f32",
    lm_head: str | None = None,
    exclude: str | Sequence[str] = (),
    calibration: str | torch.Tensor | None = None,
    text: str | torch.Tensor | None = None,
    logits: str = "last",
    task: str | None = None,
    tokenizer: bool = True,
    verify: bool = False,
    **options: Any,
) -> Exported:
    """Export a model of transformers to a folder that its runtime generates from, or embeds with.

    Args:
        source: the folder that `save_pretrained` wrote, or a model in memory.
        path: the folder to write; an older export there is replaced, anything else is refused.
        target: "onnx" (onnxruntime-genai, or onnxruntime alone), "nnef" (tract) or "eager" (torch).
        weights: "f32", "f16", "bf16"; "int8" (onnx, eager) or "int4" for linear layers, the rest in float32.
        lm_head: the bits of the layer that makes logits, where others are wanted: "int8", or "f32".
        exclude: patterns of names of layers that keep their float weights, ["*.down_proj"], or one.
        calibration: a text, or tokens [texts, length], on which linear layers are calibrated by GPTQ; without it they
            are rounded to the nearest. It is read in pieces of the model's context.
        text: a text, or tokens [1, length], on which the loss against float weights is measured: `loss` of the result.
        logits: "last" for those of the last position alone, "all" for every position, as speculative decoding wants.
        task: "text-generation", "text2text-generation", "automatic-speech-recognition", "image-text-to-text" or
            "feature-extraction" (embeddings); by default the checkpoint's own.
        tokenizer: False exports a checkpoint that has no tokenizer.
        verify: generate some tokens from the folder and compare them with those of the model with these weights.
        **options: those of `ir.export` for the target; `accuracy_level` and `contrib` (onnx); `pooling` and `normalise`
            (embeddings): see docs/language-models.md. external_data="reference" (onnx, floats) copies no weight that
            lies in the checkpoint's .safetensors files in this element type.

    Raises:
        ExportError: see ir.errors; nothing is written then, and an older folder at `path` stays as it was.
        ValueError: an argument is none of those that are named here.
    """
    runtime = importlib.import_module(TARGETS[_one_of("target", target, TARGETS)])
    exclude = (exclude,) if isinstance(exclude, str) else exclude
    if task is None and options.keys() & {"pooling", "normalise"}:
        task = "feature-extraction"
    if task is not None:
        _one_of("task", task, AUTO)
    dtype = FLOATS[_one_of("weights", weights, runtime.WEIGHTS)] if weights in FLOATS else torch.float32
    _one_of("weights", weights, runtime.WEIGHTS)
    if weights in FLOATS:
        level = options.get("accuracy_level") if target == "onnx" else None
        _only_of_few_bits(
            weights, lm_head=lm_head, exclude=exclude or None, calibration=calibration, accuracy_level=level
        )
    elif lm_head is not None:
        _one_of("lm_head", lm_head, [w for w in runtime.WEIGHTS if w not in ("f16", "bf16")])
    if (level := options.get("accuracy_level", 4)) not in range(5):
        raise ValueError(f"accuracy_level={level!r:.40}: 0 to 4, of which 1 is float32 and 4 int8")
    if target != "onnx" and "accuracy_level" in options:
        raise ValueError(f"accuracy_level= is of products with int4 weights in onnxruntime: leave it out for {target}")
    data = options.get("external_data")
    if target == "onnx" and data not in (True, False, None, "reference"):
        raise ValueError(f"external_data={data!r:.40}: True, False, None or 'reference'")
    refers, way = data == "reference", ""
    if refers and (target != "onnx" or weights not in FLOATS or isinstance(source, torch.nn.Module)):
        raise ValueError(
            "external_data='reference' leaves the floats of a checkpoint's folder where they are, for onnxruntime: "
            "leave it out for other targets, for weights in few bits, and of a model in memory"
        )
    last = _one_of("logits", logits, ("last", "all")) == "last"
    place = Path(path)
    check_place(writable(place))
    # weights in few bits are made of the checkpoint's own numbers, unless the model has to run before
    streams = weights not in FLOATS and text is None and calibration is None
    checkpoint = open_checkpoint(source, dtype, tokenizer, task, streams)
    if weights in FLOATS:
        check_finite(checkpoint, source)
    _only_of_text(
        checkpoint.task, text=text, calibration=calibration, logits=None if last else logits,
        accuracy_level=options.get("accuracy_level"),
    )  # fmt: skip
    if lm_head is not None and checkpoint.task == "feature-extraction":
        raise RefusedError("lm_head= is for models that make logits, and this one embeds texts: leave it out")
    writer = importlib.import_module(WRITERS[checkpoint.task]) if checkpoint.task in WRITERS else runtime
    if refers:
        way = _way_to_weights(Path(source), checkpoint.model.config, weights, place)
        options["weights_folder"] = way if writer is runtime else checkpoint.folder
    if (target != "onnx" or writer is not runtime) and options.pop("contrib", False):
        raise ValueError(
            f"contrib=True writes decoders for onnxruntime: leave it out for {target} of {checkpoint.task}"
        )
    longest = longest_short(checkpoint.config) or LONGEST  # the loss is measured token by token
    tokens = None if text is None else tokens_of("text", text, source, checkpoint)[:1, : min(LONGEST, longest)]
    floats = None if tokens is None else logits_of(checkpoint.model, tokens)
    if weights not in FLOATS:
        calibrated = None if calibration is None else tokens_of("calibration", calibration, source, checkpoint)
        experts = writer is runtime and runtime.rounds_experts(options)
        plan = Plan(weights, lm_head, exclude, calibrated, experts, writer is runtime)
        model = copy.deepcopy(source) if checkpoint.model is source else checkpoint.model  # the caller's keeps its own
        checkpoint = replace(checkpoint, model=model)
        options |= runtime.quantised(model, plan)
        if streams:
            converted(checkpoint, dtype)
        options = options if writer is runtime else {**runtime.FEW_BITS, **options}
    if target == "eager" and writer is runtime and options:
        raise ValueError(f"{min(options)}= is no option of the eager target: leave it out")
    options |= {"last": last} if writer is runtime else {"target": target}
    with new_folder(place) as folder:
        with (
            told_of(checkpoint),
            without_expected_warnings(),
            clamping() if weights == "f16" else contextlib.nullcontext(),
        ):
            manifest = writer.write(checkpoint, folder, weights=weights, **options)
        manifest = replace(manifest, weights_folder=way)
        copy_tokenizer(checkpoint, folder)
        manifest.write(folder)
        if refers:
            note_files(folder, stored.linked_shards(Path(source)).folder)
        # of models that remember states, and of weights in Q4_0, some run wrong in tract, and a wrong folder is worse
        # than none
        wary = target == "nnef" and (weights not in FLOATS or getattr(manifest, "one_by_one", False))
        wary |= (
            checkpoint.task == "image-text-to-text"
        )  # whatever a model does with images, the tokens have to be its own
        where = {"checkpoint": checkpoint.folder} if refers else {}
        if writer is runtime and (verify or wary):
            check(checkpoint, runtime.load(folder, manifest, **runtime.EXACT, **where))
        elif verify or wary:
            writer.check(checkpoint, writer.load(folder, manifest, **where), manifest)
        lost = None
        if tokens is not None and floats is not None:
            lost = loss(runtime.load(folder, manifest, **where), floats, tokens)
    manifest = type(manifest).read(place)
    worded = "tokenizer.json" in manifest.files or manifest.kind == "automatic-speech-recognition"
    usage = writer.usage(place, manifest) if worded else _of_tokens(place, manifest)
    return Exported(place, manifest, usage, lost, verify or wary)


def _of_tokens(place: Path, manifest: Manifest | Parts) -> str:
    """Lines that run a folder without a tokenizer."""
    given = {"feature-extraction": "(input_ids, attention_mask)",
             "image-text-to-text": ".generate(input_ids, attention_mask, pixel_values=pixel_values)"}  # fmt: skip
    call = given.get(manifest.kind, ".generate(input_ids)")
    return f"import language_models\nprint({load_call(place, manifest.weights_folder)}{call})"


def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """The model of an exported folder in its runtime: `.generate(input_ids, attention_mask=, max_new_tokens=)`.

    One of embeddings is called instead, with tokens and their mask. `options` are those of `eager_backend.Eager`, where
    the folder is a decoder for that; for onnxruntime `checkpoint=`, the folder of the weights that
    external_data="reference" left there.

    Raises:
        CaptureError: the folder is no export, or refers to weights and `checkpoint` is not given.
        RuntimeFailure: its runtime does not load it.
    """
    folder = Path(path)
    check_files(folder)
    if (task := described(folder)["kind"]) in WRITERS:
        parts = Parts.read(folder)
        return importlib.import_module(WRITERS[task]).load(folder, parts, **_of_folder(folder, parts, options))
    manifest = Manifest.read(folder)
    options = _of_folder(folder, manifest, options)
    if manifest.target not in TARGETS:
        raise no_export(folder, ValueError(f"the target {manifest.target!r:.40} is none of {', '.join(TARGETS)}"))
    return importlib.import_module(TARGETS[manifest.target]).load(folder, manifest, **options)


def _of_folder(folder: Path, manifest: Manifest | Parts, options: dict[str, Any]) -> dict[str, Any]:
    """The options without a checkpoint that is None; RefusedError for one where all weights lie in the folder."""
    if options.get("checkpoint") is None:
        return {name: value for name, value in options.items() if name != "checkpoint"}
    if not manifest.weights_folder:
        raise RefusedError(f"{folder} has all its weights in itself and reads no checkpoint: leave checkpoint= out")
    return options


def _way_to_weights(source: Path, config: Any, weights: str, place: Path) -> str:
    """The way from the folder that is written to the one that the checkpoint's files lie in."""
    if stored_file(source, config) is None:
        raise ValueError(
            f"external_data='reference' refers to .safetensors, and transformers reads others of {source}: leave it out"
        )
    kinds: Counter[str] = Counter()
    for tensor in stored.checkpoint(source).values():
        kinds[tensor.dtype.lower()] += tensor.length
    floats = {k: kinds[k] for k in sorted(kinds.keys() & {*FLOATS})}
    if weights not in floats or 2 * floats[weights] < sum(floats.values()):  # norms alone do not count
        most = [k for k in floats if floats[k] == max(floats.values())]
        ways = " or ".join([*(f"take weights={k!r}" for k in most), "leave external_data out"])
        made = f"most weights={weights!r}" if weights in floats else f"weights={weights!r}"
        raise ValueError(
            f"external_data='reference' copies nothing and {made} are made anew, as {source} holds "
            f"{', '.join(sorted(kinds))}: {ways}"
        )
    there = stored.linked_shards(source).folder
    return os.path.relpath(there, place.absolute().parent.resolve() / place.name)


def _only_of_text(task: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None and task != "text-generation":
            raise RefusedError(f"{name}= is for decoders of text (text-generation), and this is {task}: leave it out")


def _only_of_few_bits(weights: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}= is for weights in few bits, and these are {weights}: take int4, or leave it out")


def _one_of(option: str, value: str, allowed: Any) -> str:
    if value not in allowed:
        raise ValueError(f"{option}={value!r:.60} is none of {', '.join(allowed)}")
    return value
