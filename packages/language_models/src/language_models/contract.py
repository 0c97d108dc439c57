"""What runtimes call the inputs and outputs of one step, apart from any model and from how files are written."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


class Described:
    """What is read from a file: each field is what its annotation says, or TypeError is raised."""

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, hint):
                raise TypeError(f"{name} is {value!r:.60}")


def _fits(value: Any, hint: Any) -> bool:
    args = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, a) for a in args)
    if typing.get_origin(hint) is tuple:
        return type(value) is tuple and all(_fits(v, args[0]) for v in value)
    return type(value) is int if hint is int else isinstance(value, typing.get_origin(hint) or hint)


@dataclass(frozen=True)
class Contract(Described):
    """The names that a runtime binds by; `{layer}` and `{part}` ("key", "conv_states") name what is remembered.

    Attributes:
        tokens, mask, positions: inputs; an empty name is an input that the runtime does not give.
        remembered_in, remembered_out: patterns.
        batch, new, past, total: dynamic dimensions; an empty batch is a batch of one.
    """

    logits: str
    remembered_in: str
    remembered_out: str
    tokens: str = "input_ids"
    mask: str = ""
    positions: str = ""
    batch: str = ""
    new: str = "sequence_length"
    past: str = "past_sequence_length"
    total: str = "total_sequence_length"

    def state_in(self, name: str) -> str:
        """The input that takes what a step calls "0.key"."""
        return _filled(self.remembered_in, name)

    def state_out(self, name: str) -> str:
        """The output that gives it back."""
        return _filled(self.remembered_out, name)


def _filled(pattern: str, name: str) -> str:
    layer, _, part = name.partition(".")
    made = pattern.format(layer=layer, part=part)
    return made if "." in pattern else re.sub(r"\W", "_", made)  # identifiers, which NNEF has for names


GENAI = Contract(
    logits="logits",
    mask="attention_mask",
    positions="position_ids",
    remembered_in="past_key_values.{layer}.{part}",
    remembered_out="present.{layer}.{part}",
    batch="batch_size",
)

CAUSAL_LLM = Contract(
    logits="outputs",
    remembered_in="in_cache_{part}_{layer}",
    remembered_out="out_cache_{part}_{layer}",
    new="S",
    past="P",
)


@dataclass(frozen=True)
class State(Described):
    """One remembered tensor of an exported step: its input, its output, and its shape with P for what grows."""

    name: str
    given: str
    result: str
    shape: tuple[int | str, ...]
    dtype: str

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": self.name, "in": self.given, "out": self.result, "shape": self.shape, "dtype": self.dtype}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> State:
        """What `to_json` gave."""
        element_type(said["dtype"])
        return cls(said["name"], said["in"], said["out"], tuple(said["shape"]), said["dtype"])


def element_type(name: str) -> torch.dtype:
    """torch's element type of this name; ValueError for another name, which a file may have."""
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r:.60} is no element type")
    return found
