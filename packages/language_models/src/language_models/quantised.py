"""Checkpoints whose weights are others than the floats that a model calculates with: which way there is to read them.

A `quantization_config` is transformers' own business, whatever the tensors are: it may round floats as the model runs
(BitNet), or read codes. Codes and no word of how they are read are no weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from ir.errors import CaptureError
from ir.stored import BITS, Stored

_LOAD = "or load the model by transformers and give that to language_models.export"


def said(config: Any) -> dict[str, Any]:
    """The quantization_config of a configuration, where transformers looks for it; an empty one if there is none."""
    found = [getattr(c, "quantization_config", None) for c in (config, config.get_text_config(decoder=True))]
    own: Any = next(filter(None, found), {})
    return dict(own) if isinstance(own, Mapping) else {}


def by_transformers(folder: Path, config: Any) -> bool:
    """True if transformers has to read the weights, by the quantization_config of the checkpoint.

    Raises:
        CaptureError: it does not say which method it is of, or no name of one.
    """
    if not (own := said(config)):
        return False
    method = own.get("quant_method")
    if own.get("load_in_8bit") or own.get("load_in_4bit"):
        return True
    if method is not None and not isinstance(method, str):
        raise CaptureError(f"{folder}: quant_method is {method!r:.60} in its config.json, and has to be a name")
    if method is None:
        raise CaptureError(f"{folder}: the quantization_config of its config.json has no quant_method: {_out(True)}")
    if method in AUTO_QUANTIZATION_CONFIG_MAPPING:
        return True
    warnings.warn(
        f"{folder}: transformers does not know quant_method {method!r:.40} of its config.json, and reads the weights "
        "as they are, without it",
        stacklevel=6,
    )
    return False


def way_out(folder: Path, config: Any, stored: Collection[Stored]) -> str:
    """What there is to do about weights that transformers does not read here; "" without a quantization_config."""
    return _out(not any(map(_narrow, stored))) if said(config) else ""


def _out(floats: bool) -> str:
    own = "take quantization_config out of config.json to export the floats as they are"
    return f"{own if floats else 'give the checkpoint in floats'}, {_LOAD}"


def check_stored(folder: Path, stored: Mapping[str, Stored], floats: Collection[str]) -> None:
    """Refuse codes in the place of floats, in a checkpoint whose configuration says nothing of them.

    Args:
        floats: names of the model's weights; a checkpoint that has others for them calls all matrices `.weight`, too.

    Raises:
        CaptureError: there is such a tensor.
    """
    codes = [name for name, t in stored.items() if _narrow(t) and (name in floats or name.endswith(".weight"))]
    if codes:
        kind = stored[codes[0]].dtype or "an element type that is not known here"
        raise CaptureError(
            f"{folder}: the weight {codes[0]} is stored in {kind}, and config.json has no quantization_config that "
            f"says how it is read: download config.json again, {_out(False)}"
        )


def _narrow(tensor: Stored) -> bool:
    return BITS.get(tensor.dtype, 0) <= 8
