"""Models that read images (Llava, SmolVLM, InternVL): an encoder of images, an embedding of tokens, and a decoder.

    vision_encoder          pixel_values of one image -> image_features
    embed_tokens            input_ids -> inputs_embeds
    decoder_model_merged    inputs_embeds, attention_mask, position_ids, past_key_values... -> logits, present...
    tokenizer.json, ...     as the checkpoint has them

Names: as transformers.js reads them. Features of an image take the places of its tokens in the text, and the decoder is
one of text. A model that does more with images (other positions, attention in both directions) generates other tokens:
every folder is compared with the model, and such a model is refused.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ir.errors import CaptureError, MismatchError, RefusedError
from ir.importer import caches
from ir.importer.ladder import unchanged
from language_models.checkpoint import Checkpoint
from language_models.folder import load_call
from language_models.generation_settings import Settings, settings_of
from language_models.parts import Parts, Tensors, empty_past, greedy, programs, write_part
from language_models.prompts import prompts
from language_models.step import BATCH, NEW, PAST, Step, is_state, remembered

VISION, EMBED, DECODER = "vision_encoder", "embed_tokens", "decoder_model_merged"


class See(nn.Module):
    """One image to the vectors that stand for it in a text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        found = self.model.get_image_features(pixel_values=pixel_values)
        features = getattr(found, "pooler_output", found)
        parts = features if isinstance(features, (list, tuple)) else [features]
        return torch.cat([f.reshape(-1, f.shape[-1]) for f in parts])


class Embed(nn.Module):
    """Tokens to vectors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model.get_input_embeddings()(input_ids)
        return found


class Decode(Step):
    """One step of the decoder, from vectors in the place of tokens; texts are padded on their left."""

    def forward(  # type: ignore[override]
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        past_key_values: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        assert past_key_values is not None
        cache = caches.unflatten([past_key_values[n] for n in self.states], self.context)
        given = {} if position_ids is None else {"position_ids": position_ids}
        given |= {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask, self.cache: cache}
        logits = self.model(**given, **self._keep, use_cache=True).logits
        return {"logits": logits[:, -1:], **remembered(cache)}


def write(
    checkpoint: Checkpoint, folder: Path, *, target: str, weights: str, example: torch.Tensor | None = None,
    **options: Any,
) -> Parts:  # fmt: skip
    """Write the programs into a folder; `example` are pixels of one image as the model wants them.

    Raises:
        ExportError: the model cannot be exported; see ir.errors.
    """
    model = checkpoint.model
    if not hasattr(model, "get_image_features"):
        raise CaptureError(f"{type(model).__name__} is not exported: it puts no images among the tokens of a text "
                           "(get_image_features), which is what is written of models that read images")  # fmt: skip
    image = pixels(model, example)
    batch, new = {0: "batch_size"}, {0: "batch_size", 1: "sequence_length"}
    parts = {VISION: write_part(See(model).eval(), folder / VISION, target, {"pixel_values": image},
                                {"pixel_values": None}, ["image_features"], **options)}  # fmt: skip
    ids = torch.ones(BATCH, NEW, dtype=torch.int64)
    parts[EMBED] = write_part(Embed(model).eval(), folder / EMBED, target, {"input_ids": ids}, {"input_ids": new},
                              ["inputs_embeds"], **options)  # fmt: skip
    step = Decode(model).eval()
    if step.recurrent:
        raise CaptureError(f"{type(model).__name__} remembers states beside keys and values: its images are not read")
    with torch.no_grad(), unchanged(model):
        vectors = Embed(model)(ids)
    given = {"inputs_embeds": vectors, "attention_mask": torch.ones(BATCH, PAST + NEW, dtype=torch.int64)}
    if step.takes_positions:
        given["position_ids"] = torch.arange(PAST, PAST + NEW).repeat(BATCH, 1)
    sizes: dict[str, Any] = dict.fromkeys(given, new) | {"attention_mask": batch | {1: "total_sequence_length"}}
    sizes["past_key_values"] = dict.fromkeys(step.states, batch | {2: "past_sequence_length"})
    held = {n: t.clone() for n, t in step.states.items()}
    results = ["logits", *map("present.{}".format, step.states)]
    parts[DECODER] = write_part(step, folder / DECODER, target, {**given, "past_key_values": held}, sizes, results,
                                **options)  # fmt: skip
    return Parts(checkpoint.task, target, weights, parts, _said(checkpoint, step, image))


def _said(checkpoint: Checkpoint, step: Step, image: torch.Tensor) -> dict[str, Any]:
    """What the loop has to know."""
    vocabulary = checkpoint.config.vocab_size
    shapes = {n: [t.shape[1], t.shape[3], str(t.dtype).removeprefix("torch.")] for n, t in step.states.items()}
    assert not any(map(is_state, shapes))
    return {"image_token": image_token(checkpoint.model), "image": list(image.shape[1:]), "ends": checkpoint.ends,
            "pad": checkpoint.padding, "remembered": shapes,
            "rules": settings_of(checkpoint, checkpoint.ends, vocabulary), "vocabulary": vocabulary,
            "context": checkpoint.context_length}  # fmt: skip


def image_token(model: Any) -> int:
    """The token whose places in a text an image takes.

    Raises:
        CaptureError: the configuration has none.
    """
    found = [getattr(model.config, name, None) for name in ("image_token_id", "image_token_index")]
    chosen = next((value for value in found if isinstance(value, int)), None)
    if chosen is None:
        raise CaptureError(f"{type(model).__name__}: its configuration has no image_token_id")
    return chosen


def pixels(model: Any, example: torch.Tensor | None) -> torch.Tensor:
    """An image as the model takes it, in a batch of one, with or without a dimension for several.

    Raises:
        CaptureError: it takes none of the configuration's size.
    """
    vision = getattr(model.config, "vision_config", None)
    size = getattr(vision, "image_size", None)
    tried = [] if example is None else [example]
    if example is None and size is not None:
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        image = torch.ones(1, getattr(vision, "num_channels", 3), height, width)
        tried = [image, image[None]]
    errors = []
    for image in tried:
        try:
            with torch.no_grad(), unchanged(model):
                See(model)(image.to(model.dtype))
            return image.to(model.dtype)
        except Exception as error:  # whatever a model says of a shape that it does not take
            errors.append(f"{list(image.shape)}: {type(error).__name__}: {error}")
    said = "; ".join(errors) or "its configuration has no image_size"
    way = "give example=, pixels of one image"
    if example is not None:
        way += " as its processor gives them; where the model wants more than pixels, its images are not read"
    raise CaptureError(f"{type(model).__name__} takes no image ({said:.600}): {way}")


class Generator:
    """Text behind a text with images, greedily."""

    def __init__(self, folder: Path, manifest: Parts, checkpoint: str | os.PathLike[str] | None = None) -> None:
        self.said, self.floats = manifest.said, manifest.floats
        self.settings = Settings(self.said.get("rules", {}), self.said["ends"], self.said["vocabulary"])
        self.see, self.embed, self.decode = programs(folder, manifest, [VISION, EMBED, DECODER], checkpoint)

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        max_new_tokens: int = 32,
        pixel_values: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The tokens given and those that follow; `pixel_values` are all images of the texts, one after the other.

        Raises:
            RefusedError: tokens, a mask or a length that the model does not take, or another number of images than
                the texts have places for.
        """
        limits = self.said["vocabulary"], self.said["context"]
        given, text, mask = map(torch.from_numpy, prompts(*limits, input_ids, attention_mask, max_new_tokens))
        held = self.start(len(text))

        def scores(tokens: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            nonlocal held, mask
            mask = torch.cat([mask, mask.new_ones(len(tokens), tokens.shape[1] - mask.shape[1])], 1)
            vectors = self.vectors(new, pixel_values if tokens is text else None)
            logits, held = self.step(vectors, mask, held)
            return logits[:, -1]

        made = greedy(text, self.said, max_new_tokens, scores, self.settings.processors(text, max_new_tokens, mask))
        return torch.cat([given, made[:, text.shape[1] :]], 1)

    def vectors(self, tokens: torch.Tensor, pixel_values: torch.Tensor | None = None) -> torch.Tensor:
        """Vectors of tokens, those of images in the places of theirs.

        Raises:
            RefusedError: the images take another number of places.
        """
        made = self.embed({"input_ids": tokens})["inputs_embeds"]
        if pixel_values is None:
            return made
        images = self._images(pixel_values)
        features = torch.cat([self.see({"pixel_values": image})["image_features"] for image in images])
        places = tokens == self.said["image_token"]
        if int(places.sum()) != len(features):
            raise RefusedError(f"the texts have {int(places.sum())} places for images, which take {len(features)}")
        return made.masked_scatter(places[..., None], features.to(made.dtype))

    def _images(self, pixel_values: Any) -> torch.Tensor:
        """Images one by one, as their encoder takes them; dimensions in front count images, of texts and in each.

        Raises:
            RefusedError: images of another size, or none.
        """
        size = self.said["image"]
        one = size[1:] if len(size) > 3 and size[0] == 1 else size
        fits = isinstance(pixel_values, torch.Tensor) and pixel_values.is_floating_point() and pixel_values.numel()
        if not fits or [*pixel_values.shape[-len(one) :]] != one:
            kind = f"a {type(pixel_values).__name__}"
            if isinstance(pixel_values, torch.Tensor):
                kind = f"{str(pixel_values.dtype).removeprefix('torch.')} of shape {list(pixel_values.shape)}"
            raise RefusedError(f"pixel_values: a tensor of floats of shape {['images', *one]} is wanted, as the "
                               f"processor of the checkpoint gives it; this is {kind}")  # fmt: skip
        images: torch.Tensor = pixel_values.reshape(-1, 1, *size).to(self.floats)
        return images

    def start(self, batch: int) -> dict[str, torch.Tensor]:
        """What is remembered before the first token."""
        return empty_past(self.said, "past_key_values", batch)

    def step(
        self, vectors: torch.Tensor, mask: torch.Tensor, held: Tensors
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Logits behind more vectors, and what is remembered then; `mask` is that of the whole text."""
        places = (mask.cumsum(1) - 1).clip(0)[:, -vectors.shape[1] :]
        found = self.decode({"inputs_embeds": vectors, "attention_mask": mask, "position_ids": places, **held})
        return found["logits"], {n.replace("present", "past_key_values"): t for n, t in found.items() if n != "logits"}


def load(folder: Path, manifest: Parts, checkpoint: str | os.PathLike[str] | None = None, **_: Any) -> Generator:
    """The model in its runtime; `checkpoint` is the folder of weights that lie elsewhere."""
    return Generator(folder, manifest, checkpoint)


def check(checkpoint: Checkpoint, loaded: Generator, manifest: Parts, count: int = 12) -> None:
    """Compare greedy tokens behind a text with an image with those of the model itself.

    Raises:
        MismatchError: they differ.
    """
    drawn = torch.Generator().manual_seed(0)
    image = torch.randn(1, *manifest.said["image"], generator=drawn).to(checkpoint.model.dtype)
    taken = len(loaded.see({"pixel_values": image})["image_features"])
    token = manifest.said["image_token"]
    words = torch.randint(0, checkpoint.config.vocab_size, (1, 9), generator=drawn)
    words[words == token] = (token + 1) % checkpoint.config.vocab_size
    places, special = torch.full((1, taken), token), torch.tensor([_special(checkpoint)], dtype=torch.int64)
    text, marked = (torch.cat([words[:, :4], m, places, m, words[:, 4:]], 1) for m in (words[:, :0], special))
    error, scale = _apart(loaded, text, image, _logits(checkpoint.model, text, image))
    with unchanged(checkpoint.model):
        wanted = reference(checkpoint.model, text, image, count)
    found = loaded.generate(text, max_new_tokens=count, pixel_values=image)
    # other arithmetic than float32 differs by more, and so does a model that attends to images in another way
    allowed = 1e-3 if manifest.weights == "f32" else 0.05
    does = f"{type(checkpoint.model).__name__} does more with images than to put them in the places of their tokens"
    if not torch.equal(wanted, found) or not error <= allowed * scale:
        said = [t[0, text.shape[1] :].tolist() for t in (found, wanted)]
        raise MismatchError(f"behind an image the folder generates {said[0]}, the model {said[1]}; logits differ by "
                            f"{error:.2g} (scale {scale:.2g}): {does}, or the file is wrong")  # fmt: skip
    try:
        logits = _logits(checkpoint.model, marked, image)
    except Exception:  # whatever a model says of such a text, which no processor has to make: nothing is known
        return
    error, scale = _apart(loaded, marked, image, logits)
    if not error <= allowed * scale:
        raise MismatchError(f"behind an image between the tokens that config.json names ({special[0].tolist()!s:.100}) "
                            f"logits differ by {error:.2g} (scale {scale:.2g}): {does}")  # fmt: skip


def _special(checkpoint: Checkpoint) -> list[int]:
    """The tokens that the configuration names, but for the image's own: a processor may put them round an image."""
    own = [vars(c) for c in (checkpoint.model.config, checkpoint.config)]
    named = [v for said in own for name, v in said.items() if re.search("_token_(ids?|index|indices)$", name)]
    ids = {i for v in named for i in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(i, int)}
    return sorted(i for i in ids - {image_token(checkpoint.model)} if 0 <= i < checkpoint.config.vocab_size)


def _logits(model: Any, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """The model's behind a text with an image: float32[1, vocabulary]."""
    with torch.no_grad(), unchanged(model):
        made: torch.Tensor = model(**_given(model, text, image, torch.ones_like(text))).logits
    return made[:, -1].float()


def _apart(loaded: Generator, text: torch.Tensor, image: torch.Tensor, logits: torch.Tensor) -> tuple[float, float]:
    """By how much the folder's logits behind a text with an image differ from these, and how large these are."""
    own = loaded.step(loaded.vectors(text, image), torch.ones_like(text), loaded.start(1))[0][:, -1].float()
    return float((own - logits).abs().max()), float(logits.abs().max())


def reference(model: Any, tokens: torch.Tensor, image: torch.Tensor, count: int, mask: Any = None) -> torch.Tensor:
    """What transformers itself generates, each token the likeliest."""
    given = _given(model, tokens, image, torch.ones_like(tokens) if mask is None else mask)
    found: torch.Tensor = model.generate(**given, max_new_tokens=count, do_sample=False, num_beams=1)
    return found


def _given(model: Any, tokens: torch.Tensor, image: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    kinds = {
        "token_type_ids": (tokens == image_token(model)).long()
    }  # which some models want, as their processors give
    takes = {n: t for n, t in kinds.items() if n in inspect.signature(model.forward).parameters}
    return {"input_ids": tokens, "attention_mask": mask, "pixel_values": image, **takes}


def usage(folder: Path, manifest: Parts) -> str:
    """Lines that generate from the folder."""
    return (
        "import language_models, transformers\n"
        f"processor = transformers.AutoProcessor.from_pretrained({str(folder)!r})\n"
        'given = processor(text="...", images=[image], return_tensors="pt")\n'
        f"tokens = {load_call(folder, manifest.weights_folder)}.generate(\n"
        "    given.input_ids, given.attention_mask, pixel_values=given.pixel_values)\n"
        "print(processor.batch_decode(tokens))"
    )
