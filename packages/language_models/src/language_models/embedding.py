"""Embeddings: one program from texts to one vector each, with the pooling in the file.

    model.onnx | .nnef.tgz | .pt2    input_ids, attention_mask -> sentence_embedding
    tokenizer.json, ...              as the checkpoint has them

Names: as Optimum writes models of sentence-transformers. How tokens are pooled is said by the caller, or by the files
that sentence-transformers keeps beside a checkpoint (modules.json, 1_Pooling/config.json). Padding may stand
on either side: each text is moved to the left end of its row first, as absolute positions count from there.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ir.errors import CaptureError, MismatchError
from ir.importer.ladder import unchanged
from ir.importer.refusals import own_line
from language_models.checkpoint import Checkpoint
from language_models.configuration import read_json
from language_models.folder import inside, load_call
from language_models.parts import Parts, programs, write_part
from language_models.prompts import check_length, fails_beyond, limits, texts
from language_models.step import shifted

TASK = "feature-extraction"
OUTPUT = "sentence_embedding"
_KNOWN = ("Transformer", "Pooling", "Normalize")  # modules of sentence-transformers that are written here
# modes of its Pooling, by one setting (from 5.4 on) or by one each that is true (before)
_MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_LEGACY = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}


def mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens of a text."""
    weights = mask.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def cls(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The first token of a text."""
    return _at(hidden, mask.argmax(1))


def last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The last token of a text."""
    return _at(hidden, (mask * torch.arange(mask.shape[1], device=mask.device)).amax(1))


def _at(hidden: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return hidden.gather(1, place[:, None, None].expand(-1, -1, hidden.shape[-1])).squeeze(1)


POOLING = {"mean": mean, "cls": cls, "last": last}


class Embed(nn.Module):
    """A model from tokens to a vector for each text."""

    def __init__(self, model: Any, pooling: str, normalise: bool) -> None:
        super().__init__()
        self.model = model
        self.pool, self.normalise = POOLING[pooling], normalise
        takes = inspect.signature(_body(model).forward).parameters
        self._given = {"use_cache": False} if "use_cache" in takes else {}

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        in_front = attention_mask.argmax(1)
        tokens, mask = shifted(input_ids, -in_front), shifted(attention_mask, -in_front)
        found = _body(self.model)(input_ids=tokens, attention_mask=mask, **self._given)
        pooled = self.pool(found.last_hidden_state, mask)
        return nn.functional.normalize(pooled, dim=-1) if self.normalise else pooled


def _body(model: Any) -> Any:
    """The part that gives a vector for each token."""
    return model.get_encoder() if model.config.is_encoder_decoder else model


def pooling_of(folder: Path) -> tuple[str, bool]:
    """How sentence-transformers pools a checkpoint, and whether it normalises; the mean where it says nothing.

    Raises:
        CaptureError: it does more than that.
    """
    modules = folder / "modules.json"
    if not modules.is_file():
        return "mean", False
    try:
        said = [(str(m["type"]).rpartition(".")[2], inside(folder, m["path"])) for m in read_json(modules)]
        places = dict(said)
        found = read_json(places["Pooling"] / "config.json") if "Pooling" in places else {}
        modes = _modes(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CaptureError(f"{modules} cannot be read ({error}): say pooling=") from error
    strange = [n for n, _ in said if n not in _KNOWN] + [n for n in modes if n not in _MODES]
    if strange or len(modes) != 1:
        asked = ", ".join(strange or modes) or "a Pooling without a mode"
        raise CaptureError(f"{modules} asks for {asked}, which is not written: say pooling=")
    return _MODES[modes[0]], "Normalize" in places


def _text_preprocessing(folder: Path) -> list[str]:
    """What sentence-transformers does to texts before they become tokens, by the files that it keeps."""
    said: dict[str, Any] = {}
    for file in ("config_sentence_transformers.json", "sentence_bert_config.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # what it would not read either
            said |= read_json(folder / file)
    prompts, name = said.get("prompts"), said.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    return [*([f"puts {prompt!r:.60} in front"] if prompt else []),
            *(["makes lower case"] if said.get("do_lower_case") is True else [])]  # fmt: skip


def _modes(said: Any) -> list[str]:
    """What the settings of a Pooling ask for, by sentence-transformers' names; the mean where they name no mode.

    sentence-transformers 5.4 takes settings whose modes are all false for the mean.
    """
    asked = ["include_prompt=false"] if said.get("include_prompt", True) is not True else []
    if "pooling_mode" in said:
        named = said["pooling_mode"]
        return [*map(str, named if isinstance(named, list) else [named]), *asked]
    each = {_LEGACY.get(n, n): v for n, v in said.items() if n.startswith("pooling_mode_")} or {"mean": True}
    return [*(n for n, v in each.items() if v), *asked]


def embedder(checkpoint: Checkpoint, pooling: str | None, normalise: bool | None) -> Embed:
    """The model with the pooling that was asked for, or that the checkpoint's files say."""
    if pooling is not None and pooling not in POOLING:
        raise ValueError(f"pooling={pooling!r:.60} is none of {', '.join(sorted(POOLING))}")
    said = ("mean", False) if pooling is not None or checkpoint.folder is None else pooling_of(checkpoint.folder)
    if checkpoint.folder is not None and (done := _text_preprocessing(checkpoint.folder)):
        what = f"sentence-transformers {' and '.join(done)} of the texts, which a program of tokens cannot"
        warnings.warn(f"{checkpoint.folder}: {what}; do so before the tokenizer", stacklevel=2)
    model = checkpoint.model
    if model.main_input_name != "input_ids":
        raise CaptureError(f"{type(model).__name__} takes {model.main_input_name} and no texts: there is no embedding")
    return Embed(model, pooling or said[0], said[1] if normalise is None else normalise)


def write(
    checkpoint: Checkpoint, folder: Path, *, target: str, weights: str, pooling: str | None = None,
    normalise: bool | None = None, **options: Any,
) -> Parts:  # fmt: skip
    """Write the program into a folder.

    Raises:
        ExportError: the model cannot be exported; see ir.errors.
    """
    module = embedder(checkpoint, pooling, normalise)
    ids = torch.ones(2, 5, dtype=torch.int64)
    given, sizes = {"input_ids": ids, "attention_mask": ids.clone()}, {0: "batch_size", 1: "sequence_length"}
    with torch.no_grad(), unchanged(module):
        width = _width(module, given)
        padding = getattr(checkpoint.config, "pad_token_id", None)
        context, run = checkpoint.context_length, lambda text: module(text, torch.ones_like(text))
        _, positions = limits(run, padding)
        if positions is None and fails_beyond(run, context):
            positions = context
    part = write_part(
        module, folder / "model", target, given, dict.fromkeys(given, sizes), [OUTPUT], positions=positions, **options
    )
    said = {"pooling": module.pool.__name__, "normalised": module.normalise, "width": width,
            "vocabulary": checkpoint.config.vocab_size}  # fmt: skip
    said |= {} if positions is None else {"positions": positions}
    return Parts(TASK, target, weights, {"model": part}, said)


def _width(module: Embed, given: dict[str, torch.Tensor]) -> int:
    """The numbers of a vector; raises CaptureError where the model gives none for each token."""
    name, length = type(module.model).__name__, given["input_ids"].shape[1]
    try:
        vectors = _body(module.model)(**given, **module._given).last_hidden_state
    except Exception as error:  # of all classes: it is the model's own
        said = "\n  ".join([f"{f'{type(error).__name__}: {error}':.300}", *own_line(error)])
        raise CaptureError(f"{name} gives no vectors for tokens and a mask alone: {said}") from error
    if vectors.shape[1] != length:
        raise CaptureError(
            f"{name} gives {vectors.shape[1]} vectors for {length} tokens, and pooling takes one for each"
        )
    return int(vectors.shape[-1])


class Embedder:
    """Texts to vectors: `embedder(input_ids, attention_mask)`; padding may stand on either side."""

    def __init__(self, folder: Path, manifest: Parts, checkpoint: str | os.PathLike[str] | None = None) -> None:
        (self._program,) = programs(folder, manifest, ["model"], checkpoint)
        self._vocabulary, self._positions = manifest.said["vocabulary"], manifest.said.get("positions")

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Vectors of shape [texts, width].

        Raises:
            RefusedError: tokens or a mask that the model does not take, or more tokens than it has positions for.
        """
        tokens, mask = map(torch.from_numpy, texts("input_ids", input_ids, attention_mask, self._vocabulary))
        check_length("input_ids", tokens.shape[1], self._positions)
        return self._program({"input_ids": tokens, "attention_mask": mask})[OUTPUT]


def load(folder: Path, manifest: Parts, checkpoint: str | os.PathLike[str] | None = None, **_: Any) -> Embedder:
    """The model in its runtime; `checkpoint` is the folder of weights that lie elsewhere."""
    return Embedder(folder, manifest, checkpoint)


def check(checkpoint: Checkpoint, loaded: Embedder, manifest: Parts) -> None:
    """Compare vectors with the model's own: three texts of different lengths, padding on either side masked.

    Raises:
        MismatchError: they differ by more than rounding.
    """
    module = embedder(checkpoint, manifest.said["pooling"], manifest.said["normalised"])
    drawn = torch.Generator().manual_seed(0)
    longest = min(11, manifest.said.get("positions", 11))
    tokens = torch.randint(0, checkpoint.config.vocab_size, (3, longest), generator=drawn)
    mask = (torch.arange(longest) < torch.tensor([[11], [4], [7]])).to(torch.int64)
    mask[2] = mask[2].flip(0)
    with torch.no_grad(), unchanged(module):
        wanted = module(tokens, mask).float()
    found = loaded(tokens, mask).float()
    allowed = 1e-4 if manifest.weights == "f32" or manifest.weights.startswith("int") else 3e-2
    if not (error := float((found - wanted).abs().max())) <= allowed * float(wanted.abs().max()):
        scale = float(wanted.abs().max())
        raise MismatchError(f"the folder's vectors differ by {error:.2g} from the model's (scale {scale:.2g})")


def usage(folder: Path, manifest: Parts) -> str:
    """Lines that embed texts by the folder."""
    return (
        "import language_models, transformers\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(folder)!r})\n"
        'texts = tokenizer(["Once upon a time", "a text"], return_tensors="pt", padding=True)\n'
        f"print({load_call(folder, manifest.weights_folder)}(texts.input_ids, texts.attention_mask))"
    )
