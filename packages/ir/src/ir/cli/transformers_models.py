"""A local transformers checkpoint: its class from its own config, its inputs from what that class reads."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from ir.cli.inputs import Input
from ir.errors import CaptureError


def load(library: Any, folder: str, task: str | None, inputs_given: bool) -> tuple[Any, list[Input], list[str]]:
    """The model of a folder, its inputs and what there is to say of it.

    Args:
        library: the module transformers.
        task: one of transformers' pipelines, whose class of model is taken; by default the checkpoint's own class.
        inputs_given: what the model reads need not be known.

    Raises:
        CaptureError: the task is unknown, or what the model reads is, or the folder has not all weights.
    """
    library.utils.logging.disable_progress_bar()
    config = library.AutoConfig.from_pretrained(folder, local_files_only=True)
    config.use_cache = False
    cls = _class(library, config, task)
    stored = any(p.suffix in (".safetensors", ".bin") for p in Path(folder).iterdir())
    if stored:
        model, found = cls.from_pretrained(folder, config=config, local_files_only=True, output_loading_info=True)
        if missing := sorted(found["missing_keys"]):
            raise CaptureError(
                f"{folder} has no weights for {', '.join(missing[:4])}{' and others' if len(missing) > 4 else ''} of "
                f"{type(model).__name__}, which would be random: give the --task that the checkpoint was trained for"
            )
    else:
        model = cls.from_config(config) if hasattr(cls, "from_config") else cls(config)
    notes = [] if stored else ["the folder has no weights: they are random"]
    return model, [] if inputs_given else inputs_of(model), notes


def _class(library: Any, config: Any, task: str | None) -> Any:
    if task is None:
        named = (config.architectures or ["AutoModel"])[0]
        return getattr(library, named, library.AutoModel)
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
