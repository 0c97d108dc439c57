"""A local transformers checkpoint: its class from its own config, its inputs from what that class reads."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ir.cli.inputs import Input
from ir.errors import CaptureError
from ir.files import strange

_OWN: dict[str, Any] = {
    "local_files_only": True,
    "trust_remote_code": False,
}  # of None transformers asks at the terminal


def load(library: Any, folder: str, task: str | None, inputs_given: bool) -> tuple[Any, list[Input], list[str]]:
    """The model of a folder, its inputs and what there is to say of it.

    Args:
        library: the module transformers.
        task: one of transformers' pipelines, whose class of model is taken; by default the checkpoint's own class.
        inputs_given: what the model reads need not be known.

    Raises:
        CaptureError: the task is unknown, or what the model reads is, or the folder has not all weights, or code.
    """
    library.utils.logging.disable_progress_bar()
    with _without_its_code(folder):
        model, stored = _made(library, folder, task)
    notes = [] if stored else ["the folder has no weights: they are random"]
    return model, [] if inputs_given else inputs_of(model), notes


def _made(library: Any, folder: str, task: str | None) -> tuple[Any, bool]:
    """The model, and whether the folder has its weights."""
    if name := strange(Path(folder)):
        raise CaptureError(f"{folder}: {name:.100} is neither a file nor a folder; download the checkpoint again")
    config = library.AutoConfig.from_pretrained(folder, **_OWN)
    config.use_cache = False
    cls = _class(library, config, task)
    if not any(p.suffix in (".safetensors", ".bin") for p in Path(folder).iterdir()):
        auto = hasattr(cls, "from_config")
        return cls.from_config(config, trust_remote_code=False) if auto else cls(config), False
    model, found = cls.from_pretrained(folder, config=config, output_loading_info=True, **_OWN)
    if missing := sorted(found["missing_keys"]):
        raise CaptureError(
            f"{folder} has no weights for {', '.join(missing[:4])}{' and others' if len(missing) > 4 else ''} of "
            f"{type(model).__name__}, which would be random: give the --task that the checkpoint was trained for"
        )
    return model, True


@contextlib.contextmanager
def _without_its_code(folder: str) -> Iterator[None]:
    """Code that comes with a checkpoint is never run, and nobody is asked whether it may be."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        what = "the checkpoint has code of its own, which is not run"
        raise CaptureError(f"{folder}: {what}; load the model in Python and give it to ir.export") from error


def _class(library: Any, config: Any, task: str | None) -> Any:
    if task is None:
        named = next(iter(config.architectures or ()), "")
        found = getattr(library, named, None) if isinstance(named, str) else None
        is_model = isinstance(found, type) and issubclass(found, library.PreTrainedModel)
        return found if is_model else library.AutoModel
    tasks: dict[str, Any] = importlib.import_module("transformers.pipelines").SUPPORTED_TASKS
    classes = tasks.get(task, {}).get("pt")
    if not classes:
        raise CaptureError(f"--task {task!r:.60}: transformers has {', '.join(sorted(tasks))}")
    return classes[0]


def inputs_of(model: Any) -> list[Input]:
    """What `forward` reads, with the axes that vary named.

    Raises:
        CaptureError: the model's main input is none of the usual ones.
    """
    config = model.config.get_text_config() if model.main_input_name == "input_ids" else model.config
    batch, sequence = ("batch", 0), ("sequence", 16)
    words = getattr(config, "vocab_size", 10)
    match model.main_input_name:
        case "input_ids":
            made = [_ids("input_ids", words, sequence), _mask("attention_mask", sequence)]
            if config.is_encoder_decoder:
                made.append(_ids("decoder_input_ids", words, ("decoder_sequence", 8)))
            return made
        case "pixel_values":
            size = getattr(config, "image_size", 224)
            height, width = size if isinstance(size, (list, tuple)) else (size, size)
            channels = getattr(config, "num_channels", 3)
            return [Input("pixel_values", torch.float32, (batch, channels, height, width))]
        case "input_values":
            return [Input("input_values", torch.float32, (batch, ("samples", 16000)))]
        case "input_features" if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
            frames = 2 * config.max_source_positions
            made = [Input("input_features", torch.float32, (batch, config.num_mel_bins, frames))]
            if config.is_encoder_decoder:
                made.append(_ids("decoder_input_ids", words, ("decoder_sequence", 8)))
            return made
    raise CaptureError(f"a {type(model).__name__} reads {model.main_input_name}: say its inputs by --input")


def _ids(name: str, words: int, length: tuple[str, int]) -> Input:
    return Input(name, torch.int64, (("batch", 0), length), words)


def _mask(name: str, length: tuple[str, int]) -> Input:
    return Input(name, torch.int64, (("batch", 0), length), values=torch.ones)
