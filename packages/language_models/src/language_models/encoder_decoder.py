"""Models of an encoder and a decoder (T5, Bart, Whisper): a program each, on every target.

    encoder_model              input_ids or sound -> last_hidden_state, present.{layer}.encoder.{key,value}
    decoder_with_past_model    input_ids, encoder_attention_mask, past_key_values... -> logits, present...
    tokenizer.json, ...        as the checkpoint has them

Names: Optimum's. What the decoder looks up in the encoder's text is computed once, by the encoder's program, and only
read by the decoder's, which serves the first token and all others: its past may have no length.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from ir.errors import CaptureError, MismatchError, RefusedError
from ir.importer import caches
from ir.importer.ladder import unchanged
from language_models.checkpoint import Checkpoint
from language_models.folder import load_call
from language_models.generation_settings import Settings, settings_of
from language_models.parts import Parts, Tensors, empty_past, greedy, programs, write_part
from language_models.prompts import check_count, check_length, limits, texts
from language_models.step import cache_argument, fresh_cache, remembered

ENCODER, DECODER = "encoder_model", "decoder_with_past_model"
TEXT = "input_ids"
MASK = "encoder_attention_mask"
BATCH, SOURCE, PAST, NEW = 2, 7, 5, 3  # sizes of the example, all different


def _cache(model: Any) -> Any:
    config = model.config.get_text_config(decoder=True)
    return transformers.EncoderDecoderCache(fresh_cache(config), fresh_cache(config))


class _Said(BaseModelOutput):  # type: ignore[misc]
    """What an encoder said: some models ask it for more, as for their experts' router, and take None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


def _decoded(model: Any, hidden: torch.Tensor, mask: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    """Logits of a decoder behind an encoder; the cache takes what is to be remembered."""
    given = {cache_argument(model.forward): cache} | ({} if mask is None else {"attention_mask": mask})
    found = model(**given, encoder_outputs=_Said(last_hidden_state=hidden), decoder_input_ids=tokens, use_cache=True)
    logits: torch.Tensor = found.logits
    return logits


class Encode(nn.Module):
    """The encoder, and the keys and values of the decoder's attention over its text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        hidden = self.model.get_encoder()(**{self.model.main_input_name: inputs}, **mask).last_hidden_state
        cache, first = _cache(self.model), torch.ones(hidden.shape[0], 1, dtype=torch.int64)
        _decoded(self.model, hidden, attention_mask, first, cache)
        return {"last_hidden_state": hidden, **{n: t for n, t in remembered(cache).items() if _read_only(n)}}


class Decode(nn.Module):
    """One step of the decoder, from tokens and what is remembered to logits of the last position and the same again."""

    def __init__(self, model: Any, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.model = model
        self.width = hidden.shape[-1]
        caches.register(model)
        cache = _cache(model)
        with torch.no_grad(), unchanged(model):
            _decoded(model, hidden, mask, torch.ones(len(hidden), PAST, dtype=torch.int64), cache)
        self.states = remembered(cache)
        _, self.context = caches.flatten(cache)
        if not any(map(_read_only, self.states)):
            raise CaptureError(f"{type(model).__name__} remembers nothing of its encoder: there is no cache for a step")

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        assert past_key_values is not None
        cache = caches.unflatten([past_key_values[n] for n in self.states], self.context)
        key = next(t for n, t in past_key_values.items() if _read_only(n))
        # only its sizes are looked at: keys and values of the encoder's text are there
        hidden = key.new_zeros(key.shape[0], key.shape[2], self.width)
        logits = _decoded(self.model, hidden, encoder_attention_mask, input_ids, cache)
        return {"logits": logits[:, -1:], **{n: t for n, t in remembered(cache).items() if not _read_only(n)}}


def _read_only(name: str) -> bool:
    """True for what is remembered of the encoder's text."""
    return ".encoder." in name


def write(
    checkpoint: Checkpoint, folder: Path, *, target: str, weights: str, example: torch.Tensor | None = None,
    **options: Any,
) -> Parts:  # fmt: skip
    """Write both programs into a folder; `example` is sound for an encoder that takes no tokens.

    Raises:
        ExportError: the model cannot be exported; see ir.errors.
    """
    model = checkpoint.model
    source = sound(checkpoint, example)
    mask = {"attention_mask": torch.ones_like(source)} if model.main_input_name == TEXT else {}
    encode = Encode(model).eval()
    with torch.no_grad(), unchanged(model):
        hidden = encode(source, **mask)["last_hidden_state"]
    decode = Decode(model, hidden, mask.get("attention_mask")).eval()
    kept = [n for n in decode.states if _read_only(n)]
    along = {0: "batch_size", **({1: "encoder_sequence_length"} if source.dim() == 2 else {})}
    limited = _limits(checkpoint, hidden[:1], mask["attention_mask"][:1] if mask else None)
    parts = {ENCODER: write_part(
        encode, folder / ENCODER, target, {"inputs": source, **mask}, {"inputs": along, "attention_mask": along},
        ["last_hidden_state", *map("present.{}".format, kept)], {"inputs": model.main_input_name},
        positions=limited.get("source_positions"), **options,
    )}  # fmt: skip
    given: dict[str, Any] = {"input_ids": torch.ones(BATCH, NEW, dtype=torch.int64)}
    given |= {MASK: mask["attention_mask"]} if mask else {}
    sizes: dict[str, Any] = {"input_ids": {0: "batch_size", 1: "sequence_length"}, MASK: along}
    axis = "encoder_sequence_length" if source.dim() == 2 else None
    grows = {False: "past_sequence_length", True: axis}
    sizes["past_key_values"] = {
        n: {0: "batch_size", **({2: grows[_read_only(n)]} if grows[_read_only(n)] else {})} for n in decode.states
    }
    given["past_key_values"] = {n: t.clone() for n, t in decode.states.items()}
    new = [f"present.{n}" for n in decode.states if not _read_only(n)]
    parts[DECODER] = write_part(decode, folder / DECODER, target, given, sizes, ["logits", *new],
                                positions=limited.get("positions"), **options)  # fmt: skip
    said = _said(checkpoint, decode) | ({} if mask else {"source": list(source.shape[1:])})
    return Parts(checkpoint.task, target, weights, parts, said | limited)


def _said(checkpoint: Checkpoint, decode: Decode) -> dict[str, Any]:
    """What the loop has to know."""
    config, own = checkpoint.config, checkpoint.generation
    start = next((v for c in (own, config) for n in ("decoder_start_token_id", "bos_token_id")
                  if (v := getattr(c, n, None)) is not None), 0)  # fmt: skip
    ends = own.eos_token_id if own.eos_token_id is not None else config.eos_token_id
    ends = list(ends) if isinstance(ends, (list, tuple)) else [] if ends is None else [ends]
    pad = own.pad_token_id if own.pad_token_id is not None else getattr(config, "pad_token_id", None)
    rules = settings_of(checkpoint, ends, config.vocab_size)
    grows = {n: [t.shape[1], t.shape[3], str(t.dtype).removeprefix("torch.")] for n, t in decode.states.items()
             if not _read_only(n)}  # fmt: skip
    return {"start": start, "ends": ends, "pad": pad if pad is not None else [*ends, 0][0], "rules": rules,
            "remembered": grows, "vocabulary": config.vocab_size, "context": checkpoint.context_length}  # fmt: skip


def _limits(checkpoint: Checkpoint, hidden: torch.Tensor, mask: torch.Tensor | None) -> dict[str, int]:
    """How many tokens the encoder has an embedding for, and how many positions both halves have, where a table says."""
    model, padding = checkpoint.model, getattr(checkpoint.config, "pad_token_id", None)
    found: dict[str, int | None] = {}
    with unchanged(model):
        if mask is not None:
            encoder = model.get_encoder()
            found["source_vocabulary"], found["source_positions"] = limits(
                lambda text: encoder(input_ids=text, attention_mask=torch.ones_like(text)), padding
            )
        _, found["positions"] = limits(lambda text: _decoded(model, hidden, mask, text, _cache(model)), padding)
    return {name: value for name, value in found.items() if value is not None}


def sound(checkpoint: Checkpoint, example: torch.Tensor | None = None) -> torch.Tensor:
    """Two examples for the encoder: tokens, or sound as the checkpoint's own extractor of features makes it.

    Raises:
        CaptureError: the encoder takes no tokens, and there is neither an example nor an extractor.
    """
    if checkpoint.model.main_input_name == TEXT:
        return torch.ones(BATCH, SOURCE, dtype=torch.int64)
    if example is None:
        if checkpoint.folder is None or not (checkpoint.folder / "preprocessor_config.json").is_file():
            name = checkpoint.model.main_input_name
            raise CaptureError(f"the encoder takes {name}, and no preprocessor_config.json says how these look: give "
                               f"example=, a tensor of {name} for one sound")  # fmt: skip
        example = _silence(checkpoint)
    return torch.cat([example[:1]] * BATCH).to(checkpoint.model.dtype)


def _silence(checkpoint: Checkpoint) -> torch.Tensor:
    """A second of silence as the checkpoint's own extractor of features has it."""
    name = checkpoint.model.main_input_name
    try:
        extract: Any = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.folder, local_files_only=True)
        second = torch.zeros(extract.sampling_rate).numpy()
        made: torch.Tensor = extract(second, sampling_rate=extract.sampling_rate, return_tensors="pt")[name]
        with torch.no_grad():
            checkpoint.model.get_encoder()(**{name: made.to(checkpoint.model.dtype)})
        return made
    except Exception as error:  # whatever classes say of settings that are not their own
        raise CaptureError(
            f"{checkpoint.folder}: its preprocessor_config.json makes no features of sound that the encoder takes "
            f"({type(error).__name__}: {error!s:.200}); download it again, or give example="
        ) from error


class Generator:
    """Text from an encoder's input, greedily: what has to be looked up in it is computed once."""

    def __init__(self, folder: Path, manifest: Parts, checkpoint: str | os.PathLike[str] | None = None) -> None:
        self.said, self.vocabulary = manifest.said, int(manifest.said["vocabulary"])
        self.floats = manifest.floats
        self.settings = Settings(self.said["rules"], self.said["ends"], self.vocabulary, two_halves=True)
        self.encoder, self.decoder = programs(folder, manifest, [ENCODER, DECODER], checkpoint)

    def generate(
        self,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        max_new_tokens: int = 32,
        decoder_input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The decoder's tokens, each the likeliest, behind its first or those that are given; a text that has ended
        is padded. `inputs` are tokens or sound, `attention_mask` tells tokens from padding.

        Raises:
            RefusedError: tokens, a mask, sound or a number of tokens that the model does not take.
        """
        check_count(max_new_tokens)
        inputs, mask = self._source(inputs, attention_mask)
        first = torch.full((len(inputs), 1), self.said["start"])
        if decoder_input_ids is not None:
            first, _ = map(torch.from_numpy, texts("decoder_input_ids", decoder_input_ids, None, self.vocabulary))
            if len(first) != len(inputs):
                raise RefusedError(f"decoder_input_ids has {len(first)} rows, and there are {len(inputs)} inputs")
        fed, positions = first.shape[1] + max_new_tokens - 1, self.said.get("positions")  # the last token is not read
        if positions is not None and fed > positions:
            raise RefusedError(f"max_new_tokens={max_new_tokens} behind {first.shape[1]} is more than the "
                               f"{positions} positions of the decoder: ask for fewer")  # fmt: skip
        held = self.encode(inputs, mask)
        processors = self.settings.processors(first, max_new_tokens, source=inputs)

        def scores(tokens: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            nonlocal held
            logits, held = self.step(new, held)
            return logits[:, -1]

        return greedy(first, self.said, max_new_tokens, scores, processors)

    def _source(self, inputs: Any, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The encoder's tokens with their mask, or sound, of which the whole is heard."""
        if (size := self.said.get("source")) is None:
            tokens, mask = texts("inputs", inputs, mask, self.said.get("source_vocabulary", self.vocabulary))
            check_length("inputs", tokens.shape[1], self.said.get("source_positions"))
            return torch.from_numpy(tokens), torch.from_numpy(mask)
        if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point() or [*inputs.shape[1:]] != size:
            said = list(inputs.shape) if isinstance(inputs, torch.Tensor) else f"a {type(inputs).__name__}"
            raise RefusedError(f"inputs: features of sound of shape {['batch', *size]} are wanted, these are {said}")
        return inputs.to(self.floats), torch.ones(inputs.shape[:2], dtype=torch.int64)

    def encode(self, inputs: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the decoder is given at its first step: the encoder's keys and values, and a past of no length."""
        found = self.encoder({self.encoder.part.inputs[0]: inputs, "attention_mask": mask})
        held = {n: t for n, t in found.items() if n.startswith("present.")} | {MASK: mask}
        return held | empty_past(self.said, "present", len(inputs))

    def step(self, tokens: torch.Tensor, held: Tensors) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Logits behind more tokens, and what is remembered then."""
        given = {n.replace("present.", "past_key_values."): t for n, t in held.items()}
        found = self.decoder({"input_ids": tokens, **given})
        return found["logits"], {**held, **{n: t for n, t in found.items() if n != "logits"}}


def load(folder: Path, manifest: Parts, checkpoint: str | os.PathLike[str] | None = None, **_: Any) -> Generator:
    """The model in its runtime; `checkpoint` is the folder of weights that lie elsewhere."""
    return Generator(folder, manifest, checkpoint)


def check(checkpoint: Checkpoint, loaded: Generator, manifest: Parts, count: int = 16) -> None:
    """Compare greedy tokens with those of the model itself.

    Raises:
        MismatchError: they differ.
    """
    drawn = torch.Generator().manual_seed(0)
    if "source" in manifest.said:
        source = torch.randn(1, *manifest.said["source"], generator=drawn).to(checkpoint.model.dtype)
    else:
        vocabulary = manifest.said.get("source_vocabulary", checkpoint.config.vocab_size)
        longest = min(12, manifest.said.get("source_positions", 12))
        source = torch.randint(0, vocabulary, (1, longest), generator=drawn)
        count = min(count, manifest.said.get("positions", count))
    with unchanged(checkpoint.model):
        wanted = reference(checkpoint.model, source, count)
    found = loaded.generate(source, max_new_tokens=count)
    if not torch.equal(wanted, found):
        raise MismatchError(f"the folder generates {found[0].tolist()}, the model {wanted[0].tolist()}")


def reference(model: Any, source: torch.Tensor, count: int, mask: torch.Tensor | None = None) -> torch.Tensor:
    """What transformers itself generates, each token the likeliest."""
    given: Any = {} if mask is None else {"attention_mask": mask}
    # Whisper's own leaves out the first tokens
    generate = transformers.GenerationMixin.generate
    found = generate(model, source, **given, max_new_tokens=count, do_sample=False, num_beams=1)
    assert isinstance(found, torch.Tensor)
    return found


def usage(folder: Path, manifest: Parts) -> str:
    """Lines that generate from the folder."""
    if manifest.kind != "text2text-generation":
        return (
            "import language_models\n"
            f"program = {load_call(folder, manifest.weights_folder)}\n"
            "tokens = program.generate(features)  # of the checkpoint's AutoFeatureExtractor"
        )
    return (
        "import language_models, transformers\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(folder)!r})\n"
        'text = tokenizer("Once upon a time", return_tensors="pt")\n'
        f"tokens = {load_call(folder, manifest.weights_folder)}.generate(text.input_ids, text.attention_mask)\n"
        "print(tokenizer.decode(tokens[0], skip_special_tokens=True))"
    )
