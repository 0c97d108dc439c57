"""Models of an encoder and a decoder (T5, Bart, Whisper): a program each, on every target.

    encoder_model              input_ids or sound, attention_mask -> last_hidden_state, present.{layer}.encoder...
    decoder_with_past_model    input_ids, encoder_attention_mask, past_key_values... -> logits, present...
    tokenizer.json, ...        as the checkpoint has them

Names: Optimum's. What the decoder looks up in the encoder's text is computed once, by the encoder's program, and only
read by the decoder's, which serves the first token and all others: its past may have no length.

A mask of sound is an input where the model heeds one. The decoder's attention takes it as it is, or as the encoder made
it shorter along with the sound, which is then a result of the encoder's program (Moonshine).
"""

from __future__ import annotations

import inspect
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
from language_models.prompts import check_count, check_length, integers, limits, texts
from language_models.step import cache_argument, fresh_cache, remembered, running

ENCODER, DECODER = "encoder_model", "decoder_with_past_model"
TEXT = "input_ids"
HEEDED, MASK = "attention_mask", "encoder_attention_mask"  # what the encoder takes, and what the decoder takes
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
    given = {cache_argument(model.forward): cache} | ({} if mask is None else {HEEDED: mask})
    said = _Said(last_hidden_state=hidden)
    said.attention_mask = mask  # where some models look for it, made shorter
    logits: torch.Tensor = model(**given, encoder_outputs=said, decoder_input_ids=tokens, use_cache=True).logits
    return logits


def encoder_input(model: Any) -> str:
    """What the encoder calls its tokens or its sound; a model of any two halves calls it `inputs`."""
    encoder, own = model.get_encoder(), str(model.main_input_name)
    return own if own in inspect.signature(encoder.forward).parameters else str(encoder.main_input_name)


class Encode(nn.Module):
    """The encoder, and the keys and values of the decoder's attention over its text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.takes = model, encoder_input(model)

    def forward(self, inputs: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        mask = {} if attention_mask is None else {HEEDED: attention_mask}
        found = self.model.get_encoder()(**{self.takes: inputs}, **mask)
        hidden, shorter = found.last_hidden_state, getattr(found, "attention_mask", None)
        cache, first = _cache(self.model), torch.ones(hidden.shape[0], 1, dtype=torch.int64)
        _decoded(self.model, hidden, attention_mask if shorter is None else shorter, first, cache)
        made = {"last_hidden_state": hidden} | ({} if shorter is None else {MASK: shorter.to(torch.int64)})
        return {**made, **{n: t for n, t in remembered(cache).items() if _read_only(n)}}


class Decode(nn.Module):
    """One step of the decoder, from tokens and what is remembered to logits of the last position and the same again."""

    def __init__(self, model: Any, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.model = model
        self.width = hidden.shape[-1]
        caches.register(model)
        cache = _cache(model)
        with running(model, "with transformers' EncoderDecoderCache"), torch.no_grad(), unchanged(model):
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
    if not model.config.is_encoder_decoder:
        raise CaptureError(f"{type(model).__name__} puts sound among the tokens of a decoder, which is not exported: "
                           "give the model itself and task='text-generation', for texts alone")  # fmt: skip
    source = sound(checkpoint, example)
    encode = Encode(model).eval()
    mask = _mask(encode, source)
    with running(model, "with transformers' EncoderDecoderCache"), torch.no_grad(), unchanged(model):
        heard = encode(source, **mask)
    hidden, seen = heard["last_hidden_state"], heard.get(MASK, mask.get(HEEDED))
    decode = Decode(model, hidden, seen).eval()
    # sound has the length of the example: how many places are left of it some models compute in floats
    along = {0: "batch_size"} | ({1: "encoder_sequence_length"} if encode.takes == TEXT else {})
    limited = _limits(checkpoint, hidden[:1], None if seen is None else seen[:1])
    kept = [*[MASK] * (MASK in heard), *(f"present.{n}" for n in decode.states if _read_only(n))]
    parts = {ENCODER: write_part(
        encode, folder / ENCODER, target, {"inputs": source, **mask}, {"inputs": along, HEEDED: along},
        ["last_hidden_state", *kept], {"inputs": encode.takes}, positions=limited.get("source_positions"), **options,
    )}  # fmt: skip
    given: dict[str, Any] = {"input_ids": torch.ones(BATCH, NEW, dtype=torch.int64)}
    given |= {} if seen is None else {MASK: seen}
    given["past_key_values"] = {n: t.clone() for n, t in decode.states.items()}
    new = [f"present.{n}" for n in decode.states if not _read_only(n)]
    parts[DECODER] = write_part(decode, folder / DECODER, target, given, _decoder_sizes(decode, along),
                                ["logits", *new], positions=limited.get("positions"), **options)  # fmt: skip
    said = _said(checkpoint, decode) | ({} if encode.takes == TEXT else {"source": list(source.shape[1:])})
    return Parts(checkpoint.task, target, weights, parts, said | limited)


def _decoder_sizes(decode: Decode, along: Mapping[int, str]) -> dict[str, Any]:
    """The dynamic sizes of the decoder's inputs; `along` are those of what the encoder takes."""
    grows = {False: {2: "past_sequence_length"}, True: {2: along[1]} if 1 in along else {}}
    states = {n: {0: "batch_size", **grows[_read_only(n)]} for n in decode.states}
    return {"input_ids": {0: "batch_size", 1: "sequence_length"}, MASK: along, "past_key_values": states}


def _mask(encode: Encode, source: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mask of the example, by the encoder's name for it; none where the model hears all of its sound anyway."""
    whole = torch.ones(source.shape[:2], dtype=torch.int64)  # as transformers makes one for text and for sound
    if encode.takes == TEXT:
        return {HEEDED: whole}
    half, any_sound = whole.clone(), torch.randn(source.shape, generator=torch.Generator().manual_seed(0))
    half[:, half.shape[1] // 2 :] = 0
    try:
        with torch.no_grad(), unchanged(encode.model):
            found = [encode(any_sound.to(source.dtype), mask) for mask in (whole, half)]
    except Exception:  # of whatever class a model says that it takes no such mask
        return {}
    return {} if all(torch.equal(t, found[1][n]) for n, t in found[0].items()) else {HEEDED: whole}


def _said(checkpoint: Checkpoint, decode: Decode) -> dict[str, Any]:
    """What the loop has to know."""
    config, own = checkpoint.config, checkpoint.generation
    start = next((v for c in (own, config) for n in ("decoder_start_token_id", "bos_token_id")
                  if (v := getattr(c, n, None)) is not None), 0)  # fmt: skip
    rules = settings_of(checkpoint, checkpoint.ends, config.vocab_size)
    grows = {n: [t.shape[1], t.shape[3], str(t.dtype).removeprefix("torch.")] for n, t in decode.states.items()
             if not _read_only(n)}  # fmt: skip
    return {"start": start, "ends": checkpoint.ends, "pad": checkpoint.padding, "rules": rules, "remembered": grows,
            "vocabulary": config.vocab_size, "context": checkpoint.context_length}  # fmt: skip


def _limits(checkpoint: Checkpoint, hidden: torch.Tensor, mask: torch.Tensor | None) -> dict[str, int]:
    """How many tokens the encoder has an embedding for, and how many positions both halves have, where a table says."""
    model, padding = checkpoint.model, getattr(checkpoint.config, "pad_token_id", None)
    found: dict[str, int | None] = {}
    with unchanged(model):
        if encoder_input(model) == TEXT:
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
    name = encoder_input(checkpoint.model)
    if name == TEXT:
        return torch.ones(BATCH, SOURCE, dtype=torch.int64)
    if example is None:
        if checkpoint.folder is None or not (checkpoint.folder / "preprocessor_config.json").is_file():
            raise CaptureError(f"the encoder takes {name}, and no preprocessor_config.json says how these look: give "
                               f"example=, a tensor of {name} for one sound")  # fmt: skip
        example = _silence(checkpoint, name)
    return torch.cat([example[:1]] * BATCH).to(checkpoint.model.dtype)


def _silence(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """A second of silence as the checkpoint's own extractor of features has it, under this name."""
    try:
        extract: Any = transformers.AutoFeatureExtractor.from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=False
        )
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
        is padded. `inputs` are tokens or sound, `attention_mask` tells them from padding.

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
        """The encoder's tokens or sound with their mask."""
        if (size := self.said.get("source")) is None:
            tokens, mask = texts("inputs", inputs, mask, self.said.get("source_vocabulary", self.vocabulary))
            check_length("inputs", tokens.shape[1], self.said.get("source_positions"))
            return torch.from_numpy(tokens), torch.from_numpy(mask)
        if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point() or [*inputs.shape[1:]] != size:
            said = list(inputs.shape) if isinstance(inputs, torch.Tensor) else f"a {type(inputs).__name__}"
            raise RefusedError(f"inputs: features of sound of shape {['batch', *size]} are wanted, these are {said}")
        return inputs.to(self.floats), self._mask_of_sound(inputs, mask)

    def _mask_of_sound(self, inputs: torch.Tensor, mask: Any) -> torch.Tensor:
        """The mask of sound, all of ones where none is given; one that the model does not heed (Whisper) is checked."""
        if mask is None:
            return torch.ones(inputs.shape[:2], dtype=torch.int64)
        given, heeded = torch.from_numpy(integers("attention_mask", mask)), HEEDED in self.encoder.part.inputs
        lengths = inputs.shape[1:2] if heeded else inputs.shape[1:]
        if len(given) != len(inputs) or given.shape[1] not in lengths or not set(given.unique().tolist()) <= {0, 1}:
            shape = " or ".join(str([len(inputs), n]) for n in lengths)
            raise RefusedError(f"attention_mask: 1 for sound and 0 for padding, of shape {shape} with these inputs")
        if not given.any(1).all():
            raise RefusedError(f"row {int(given.any(1).int().argmin())} of attention_mask has no sound")
        return given

    def encode(self, inputs: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the decoder is given at its first step: the encoder's keys and values, and a past of no length."""
        found = self.encoder({self.encoder.part.inputs[0]: inputs, HEEDED: mask})
        held = {n: t for n, t in found.items() if n.startswith("present.")} | {MASK: found.get(MASK, mask)}
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
    drawn, mask = torch.Generator().manual_seed(0), None
    if (size := manifest.said.get("source")) is not None:
        heeded = HEEDED in manifest.parts[ENCODER].inputs
        source = torch.randn(1 + heeded, *size, generator=drawn).to(checkpoint.model.dtype)
        if heeded:  # the second ends in padding
            mask = (torch.arange(size[0]) < torch.tensor([[size[0]], [size[0] - size[0] // 3]])).to(torch.int64)
            source[1, mask[1] == 0] = 0
    else:
        vocabulary = manifest.said.get("source_vocabulary", checkpoint.config.vocab_size)
        longest = min(12, manifest.said.get("source_positions", 12))
        source = torch.randint(0, vocabulary, (1, longest), generator=drawn)
    count = min(count, manifest.said.get("positions", count))
    with unchanged(checkpoint.model):
        wanted = reference(checkpoint.model, source, count, mask)
    found = loaded.generate(source, mask, max_new_tokens=count)
    if not torch.equal(wanted, found):
        raise MismatchError(f"the folder generates {found.tolist()}, the model {wanted.tolist()}")


def reference(model: Any, source: torch.Tensor, count: int, mask: torch.Tensor | None = None) -> torch.Tensor:
    """What transformers itself generates, each token the likeliest."""
    given: Any = {} if mask is None else {HEEDED: mask}
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
