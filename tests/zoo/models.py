"""The registry of the zoo: every model by name, and the group that is brought to work first."""

from __future__ import annotations

from . import decoding, dense, language, perception, recurrent, timm_families, vision
from .entry import Entry, Model

_FAMILIES = (vision, dense, timm_families, language, decoding, perception, recurrent)
_ENTRIES: dict[str, Entry] = {name: made for family in _FAMILIES for name, made in family.ENTRIES.items()}

NAMES: tuple[str, ...] = tuple(_ENTRIES)

FIRST: tuple[str, ...] = (
    "resnet18",
    "resnet50",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "vit_b_16",
    "squeezenet1_1",
    "densenet121",
    "convnext_tiny",
    "bert",
    "gpt2",
    "llama",
    "t5_encoder",
    "lstm",
    "gru",
    "encoder_layer",
)

# Beside FIRST in the fast tests: what none of FIRST has (caches, a scan, two towers, windows, a feature pyramid,
# attention to another sequence).
ALSO: tuple[str, ...] = ("llama_step", "mamba", "clip", "swin_v2_t", "resnet50_fpn", "t5_decoder")


def get(name: str, small: bool = False) -> Model:
    """The model of that name; `small` has the same operators in fewer layers, narrower, on smaller inputs."""
    if name not in _ENTRIES:
        raise KeyError(f"no model {name!r} in the zoo; there are {', '.join(NAMES)}")
    return _ENTRIES[name](small)
