"""One step of a decoder as torch.export takes it: tokens and what is remembered in, logits and what is remembered out.

What a model remembers is taken apart into named tensors, by what its cache holds and not by a list of models:

    "0.key", "0.value"                       of attention, which grow with the text
    "0.conv_states", "0.recurrent_states"    of state space layers, whose size stays

A window of attention is kept in the mask, not in the cache: all keys stay, and one graph serves every length.

Texts of a batch may be padded on either side: transformers pads on the left, onnxruntime-genai on the right, behind
which the next tokens then stand. Each text is moved to the right end of its row, where its last token is the last.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ir.errors import CaptureError, ExportError
from ir.importer import caches
from ir.importer.ladder import unchanged
from ir.importer.refusals import own_line

BATCH, NEW, PAST = 2, 3, 5  # sizes of the example, all different
GROWING = ("key", "value")
_CACHES = ("cache", "past_key_values", "cache_params")  # what versions of transformers call a model's cache


class Step(nn.Module):
    """A decoder from tokens and remembered tensors to logits and remembered tensors.

    Args:
        model: a model of AutoModelForCausalLM.
        last: logits of the last position alone.
    """

    padding_side = "left"  # of the prompts that it is given; texts padded on the right are taken as well

    def __init__(self, model: Any, last: bool = True) -> None:
        super().__init__()
        self.model = model
        self.last = last
        takes = inspect.signature(model.forward).parameters
        self.cache = cache_argument(model.forward)
        self.takes_positions = "position_ids" in takes
        self._keep = {"logits_to_keep": 1} if last and "logits_to_keep" in takes else {}
        caches.register(model)
        self.states, self.context = _remembered(model, self.cache)

    @property
    def takes_mask(self) -> bool:
        """True if padding is remembered, as keys, so that it has to be masked ever after."""
        return any(not is_state(name) for name in self.states)

    @property
    def recurrent(self) -> bool:
        """True if something is remembered that does not grow: then tokens come one by one."""
        return any(is_state(name) for name in self.states)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, Any]:
        assert past_key_values is not None
        # a state is overwritten in place, which the copy makes a plain result
        held = [t.clone() if is_state(name) else t for name, t in past_key_values.items()]
        cache = caches.unflatten(held, self.context)
        if attention_mask is None:
            if self.takes_positions and position_ids is None:
                position_ids = _positions(input_ids, past_key_values)
            with _measured(cache):
                logits = self.logits(input_ids, None, position_ids, cache)
            return {"logits": logits, "present": remembered(cache)}
        behind = padding_behind(attention_mask, input_ids.shape[1])
        places = None if position_ids is None else shifted(position_ids, behind)
        with _measured(cache):
            logits = self.logits(shifted(input_ids, behind), moved_right(attention_mask), places, cache)
        return {"logits": logits if self.last else shifted(logits, -behind), "present": remembered(cache)}

    def logits(
        self, tokens: torch.Tensor, mask: torch.Tensor | None, places: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        """A call of the model, which puts what it remembers into the cache."""
        given = {"input_ids": tokens, "attention_mask": mask, "position_ids": places, self.cache: cache}
        given = {name: t for name, t in given.items() if t is not None}
        logits: torch.Tensor = self.model(**given, **self._keep, use_cache=True, return_dict=True).logits
        return logits[:, -1:] if self.last and not self._keep else logits


def remembered(cache: Any) -> dict[str, torch.Tensor]:
    """The tensors of a cache by name."""
    tensors, (names, _) = caches.flatten(cache)
    return dict(zip(names, tensors, strict=True))


@contextmanager
def _measured(cache: Any) -> Iterator[None]:
    """The length of a cache is the size of its keys; transformers asks first if there are any, to the same end."""
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    for layer in layers:
        layer.get_seq_length = lambda layer=layer: layer.keys.shape[-2]
    try:
        yield
    finally:
        for layer in layers:
            del layer.get_seq_length


def _positions(tokens: torch.Tensor, past: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Those that `generate` gives, 0 for the first token; without them a model may begin elsewhere (RoBERTa)."""
    before = next((t.shape[2] for name, t in past.items() if not is_state(name)), None)
    return None if before is None else (torch.arange(tokens.shape[1], device=tokens.device) + before)[None]


def padding_behind(mask: torch.Tensor, new: int) -> torch.Tensor:
    """How much padding stands behind each text among its new tokens."""
    places = torch.arange(1, new + 1, device=mask.device)
    return new - (mask[:, -new:] * places).amax(1)


def shifted(rows: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Each row moved to the right by a number of its own; what falls out comes in on the other side."""
    length = rows.shape[1]
    places = (torch.arange(length, device=rows.device) - by[:, None]) % length
    return rows.gather(1, places) if rows.dim() == 2 else rows.gather(1, places[..., None].expand(rows.shape))


def moved_right(mask: torch.Tensor) -> torch.Tensor:
    """The mask of the same texts, all padding on their left."""
    length = mask.shape[1]
    return (torch.arange(length, device=mask.device) >= length - mask.sum(1, keepdim=True)).to(mask.dtype)


def masks_padding(step: Step) -> bool:
    """False of a model that masks padding within a prompt, and not what is remembered of it (GIT): a program has one
    mask for both. Two rows are compared that differ in their padding alone.
    """
    tokens, seen = torch.ones(BATCH, PAST, dtype=torch.int64), torch.ones(BATCH, PAST + 1, dtype=torch.int64)
    tokens[1, :NEW], seen[:, :NEW] = 2, 0
    places = (seen.cumsum(1) - 1).clip(0) if step.takes_positions else None
    held, begin, found = {n: t[:, :, :0] for n, t in step.states.items()}, 0, []
    try:
        with torch.no_grad(), unchanged(step.model):
            for new in (tokens, tokens[:, -1:]):
                end = begin + new.shape[1]
                made = step(new, seen[:, :end], None if places is None else places[:, begin:end], held)
                held, begin = made["present"], end
                found.append(made["logits"][:, -1].float())
    except Exception:  # whatever a model says of a past of no length: nothing is known
        return True
    scales = [float(t.nan_to_num(0, 0, 0).abs().max()) for t in found]
    prompt, behind = (torch.allclose(t[0], t[1], 1e-3, 1e-3 * scale) for t, scale in zip(found, scales, strict=True))
    return behind or not prompt


def cache_argument(function: Callable[..., Any]) -> str:
    """What a model's function calls the cache that it takes.

    Raises:
        CaptureError: it takes none.
    """
    takes = inspect.signature(function).parameters
    for name in _CACHES:
        if name in takes:
            return name
    own = type(getattr(function, "__self__", function))
    above = [inspect.signature(vars(base)["forward"]).parameters for base in own.__mro__[1:] if "forward" in vars(base)]
    if named := [name for parameters in above for name in _CACHES if name in parameters]:
        raise CaptureError(
            f"{own.__name__}.forward names no {named[0]} among its parameters, and what it takes is seen from those: "
            "write them as its base class has them (input_ids, attention_mask, position_ids and so on)"
        )
    raise CaptureError(f"{own.__name__} takes no cache: it cannot go on from the tokens before")


def is_state(name: str) -> bool:
    """True for what keeps its size from step to step."""
    return name.rpartition(".")[2] not in GROWING


def _remembered(model: Any, parameter: str) -> tuple[dict[str, torch.Tensor], Any]:
    """What the model remembers of a short text, by name, and how its cache is made of that again."""
    cache = fresh_cache(model.config)
    tokens = torch.ones(BATCH, PAST, dtype=torch.int64, device=model.device)
    with running(model, "with transformers' DynamicCache"), torch.no_grad(), unchanged(model):
        model(input_ids=tokens, **{parameter: cache}, use_cache=True)
    leaves, context = caches.flatten(cache)
    named = dict(zip(context[0], leaves, strict=True))
    for name, leaf in named.items():
        if not isinstance(leaf, torch.Tensor):
            raise CaptureError(f"{type(model).__name__} remembers {name}, no tensor: no runtime holds that")
    if not named:
        raise CaptureError(f"{type(model).__name__} left its cache empty: it cannot go on from the tokens before")
    return named, context


@contextmanager
def running(model: Any, how: str) -> Iterator[None]:
    """Inside of the block the model is called as it is: whatever it says of that is told as a CaptureError."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        said = "\n  ".join([f"{type(error).__name__}: {error}", *own_line(error)])
        raise CaptureError(f"{type(model).__name__} does not run {how}: {said}") from error


def fresh_cache(config: Any) -> Any:
    """The model's own cache, with all keys of a window kept."""
    from transformers import cache_utils

    cache = cache_utils.DynamicCache(config=config)
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, cache_utils.LinearAttentionAndSlidingWindowAttentionLayer):
            cache.layers[i] = cache_utils.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif isinstance(layer, cache_utils.DynamicSlidingWindowLayer):
            cache.layers[i] = cache_utils.DynamicLayer()
    return cache
