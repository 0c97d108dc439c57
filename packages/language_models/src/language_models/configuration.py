"""What the JSON files of a checkpoint say, and how much of that a file may choose.

A config.json can name kernels by which attention or experts are computed: code that transformers would fetch from a
hub. Which kernel computes is no business of a file, and nothing is fetched while a model is made of one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers

from ir.errors import CaptureError
from ir.files import opened, size_text
from ir.importer.swapping import swapped

MOST_LAYERS = 2000
LIMIT = 16_000_000  # bytes of one file of settings, of which transformers makes sixty times as many
# ways to compute that are torch's own, and so the same on every machine; by the setting that names one
_PLAIN = {
    "_attn_implementation": ("eager", "sdpa", "flex_attention"),
    "_experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}


def read_json(file: Path, limit: int | None = LIMIT) -> Any:
    """What a file says, of at most so many bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, or larger.
    """
    with opened(file) as stream:
        data = stream.read() if limit is None else stream.read(limit + 1)
    if limit is not None and len(data) > limit:
        raise ValueError(f"it is larger than {size_text(limit)}")
    return json.loads(data)


def check_json(file: Path) -> None:
    """Before the work, and by its name: transformers and runtimes say less of it."""
    vocabulary = file.name == "tokenizer.json"
    try:
        if not isinstance(read_json(file, None if vocabulary else LIMIT), dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{file} is no JSON of a checkpoint ({error}); download it again") from error


def configuration(folder: Path) -> Any:
    """The configuration; code that comes with a checkpoint is never run, and nobody is asked whether it may be.

    Raises:
        CaptureError: transformers reads none, or no model has its values.
    """
    said = read_json(folder / "config.json")
    for part in (said, *said.values()):
        if isinstance(part, dict) and not isinstance(part.get("quantization_config") or {}, dict):
            raise CaptureError(f"{folder}: the quantization_config of its config.json is no object: correct it")
    try:
        found = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check(found)
        for part in [*_configurations(found)]:
            _choose_plain(folder, part)
        return found
    except (ImportError, CaptureError):
        raise
    except Exception as error:  # transformers' checks of a configuration raise errors of many classes
        foreign = "trust_remote_code" in str(error)
        reason = "it has code of its own" if foreign else line(error)
        way = "take a newer transformers, or load the model yourself and give that to language_models.export"
        if not foreign and _is_known(said.get("model_type")):
            way = "no such model has these values: correct them, or take a newer transformers where they are meant"
        raise CaptureError(
            f"{folder}: transformers {transformers.__version__} reads no model from its config.json ({reason}); {way}"
        ) from error


def line(error: BaseException) -> str:
    """An error in one line: its class, and the beginning of what it says."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:200]}"


def _is_known(kind: Any) -> bool:
    """True if this transformers has the kind of model that a checkpoint names."""
    return isinstance(kind, str) and kind in transformers.CONFIG_MAPPING


def _check(config: Any) -> None:
    """Raises ValueError for what transformers takes and no model has."""
    names = config.architectures or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("architectures is no list of names")
    layers = getattr(config.get_text_config(), "num_hidden_layers", 1)
    if layers is not None and not (isinstance(layers, int) and 0 <= layers <= MOST_LAYERS):
        raise ValueError(f"num_hidden_layers={layers!r:.40}: 0 to {MOST_LAYERS} are built")


def _configurations(value: Any) -> Iterator[Any]:
    """The configuration, and those of its parts, innermost first: to set one sets those that it declares, too."""
    if isinstance(value, transformers.PreTrainedConfig):
        yield from _configurations([*vars(value).values()])
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _configurations(item)


_LOADING = threading.RLock()


def _choose_plain(folder: Path, config: Any) -> None:
    """Transformers' own choice in the place of a kernel that is not everywhere; raises CaptureError for foreign ones.

    What is fetched from a hub has an owner, a slash and a repository for its name.
    """
    for setting, plain in _PLAIN.items():
        name = getattr(config, setting, None)
        if name is None or (isinstance(name, str) and name in plain):
            continue
        if not isinstance(name, str) or not name.isidentifier():
            raise CaptureError(
                f"{folder}: the {setting[1:]} of its config.json is {name!r:.60}, which names code from elsewhere, and "
                "that is never run: take it out, or load the model yourself and give that to language_models.export"
            )
        setattr(config, setting, None)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Nothing is asked of a hub meanwhile, whatever a constructor or a quantiser wants from one.

    In the whole process: one thread loads a checkpoint at a time.
    """
    with _LOADING, swapped(huggingface_hub.constants, "HF_HUB_OFFLINE", True):
        yield
