"""What is exported: a model of transformers, its configuration, and the files of its tokenizer."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from ir.errors import CaptureError, ExportError
from ir.files import strange
from ir.importer.checkpoint import convert_weights, load_weights, stored_tensors, without_weights
from ir.stored import checkpoint
from language_models.configuration import check_json, configuration, line, offline, read_json
from language_models.quantised import by_transformers, check_stored, way_out
from language_models.tasks import auto_class, check_task, task_of
from language_models.weight_files import check_weights, stored_file

# what tokenizers of transformers are saved as, whichever of them a checkpoint has
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt")
_PROCESSOR = ("preprocessor_config.json", "processor_config.json", "generation_config.json")  # of images and sound
# settings of generation_config.json that are read here, and what each has to be
_SETTINGS: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("an integer", lambda v: type(v) is int,
     ("pad_token_id", "bos_token_id", "decoder_start_token_id", "top_k", "no_repeat_ngram_size")),
    ("an integer or a list of them", lambda v: type(v) is int or _integers(v),
     ("eos_token_id", "forced_bos_token_id", "forced_eos_token_id")),
    ("a list of integers", lambda v: _integers(v), ("suppress_tokens", "begin_suppress_tokens")),
    ("a number", lambda v: type(v) in (int, float), ("temperature", "top_p", "repetition_penalty")),
    ("true or false", lambda v: type(v) is bool, ("do_sample",)),
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A model of transformers; `tokenizer` are the files that go along as they are, `folder` where they come from."""

    name: str
    model: Any
    tokenizer: tuple[Path, ...] = field(default=())
    folder: Path | None = None
    task: str = "text-generation"
    mapped: bool = False  # weights lie in the files of the folder, in their own element type

    @property
    def config(self) -> Any:
        """The configuration of the part that makes text."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def generation(self) -> Any:
        """How the checkpoint wants its text to be drawn."""
        return self.model.generation_config

    @property
    def ends(self) -> list[int]:
        """The tokens that end a text: those of the generation settings alone, as in transformers' `generate`."""
        said = self.generation.eos_token_id
        return list(said) if isinstance(said, (list, tuple)) else [] if said is None else [said]

    @property
    def padding(self) -> int:
        """What stands behind a text that has ended: the settings' padding, or else the token that ends a text.

        One that is no token of the vocabulary (-1, of older checkpoints) is none: the model has no vector for it.
        """
        found = (self.generation.pad_token_id, *self.ends)
        return next((t for t in found if t is not None and 0 <= t < self.config.vocab_size), 0)

    @property
    def context_length(self) -> int:
        """How many tokens the model was made for; where it does not say so, more than anybody asks for."""
        named = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
        found = [value for name in named if isinstance(value := getattr(self.config, name, None), int) and value > 0]
        return found[0] if found else 1 << 20


def open_checkpoint(
    source: Any, dtype: torch.dtype, tokenizer: bool = True, task: str | None = None, streams: bool = False
) -> Checkpoint:
    """The checkpoint in a folder, or one made of a model.

    Args:
        source: the folder that `save_pretrained` wrote, or a model.
        dtype: the element type of floating weights.
        tokenizer: a folder without one is refused.
        task: a name of `tasks.AUTO`; by default the checkpoint's own.
        streams: weights of a folder stay in their own element type, where they can be mapped; see `converted`.

    Raises:
        CaptureError: there is no such folder, no weights or no tokenizer in it, or no model of that task; a model has
            no numbers, or the source is neither.
    """
    if isinstance(source, torch.nn.Module):
        return _of_model(source, dtype, task)
    if not isinstance(source, (str, os.PathLike)):
        raise CaptureError(
            f"a {type(source).__name__} is neither a model of transformers nor the path of a folder: give one of them"
        )
    folder = Path(source)
    _check(folder, tokenizer)
    transformers.utils.logging.disable_progress_bar()
    with _of_installation(folder), offline():
        config = configuration(folder)
        check_weights(folder, config)
        task = task or task_of(config, next(iter(config.architectures or ()), None))
        check_task(config, task)
        files = _kept(folder, task)
        mapped = _mapped(folder, config, dtype, task, streams)
        model = mapped or _read(folder, config, dtype, task)
    return Checkpoint(folder.resolve().name, model.eval(), files, folder, task, streams and mapped is not None)


def _of_model(source: Any, dtype: torch.dtype, task: str | None) -> Checkpoint:
    """The checkpoint made of a model in memory."""
    if not hasattr(source, "generate") and not hasattr(source, "get_input_embeddings"):
        raise CaptureError(f"a {type(source).__name__} makes no text: give a model of AutoModelForCausalLM")
    if empty := [n for n, t in (*source.named_parameters(), *source.named_buffers()) if t.is_meta]:
        raise CaptureError(
            f"{type(source).__name__} has no numbers in {empty[0]}, which is on the meta device: load its weights, or "
            "give the folder of the checkpoint"
        )
    own = task or task_of(source.config, type(source).__name__)
    other = any(t.is_floating_point() and t.dtype != dtype for t in source.parameters())
    model = copy.deepcopy(source).to(dtype) if other else source  # the caller's keeps its own
    return Checkpoint(type(source).__name__, model.eval(), task=own)


def _kept(folder: Path, task: str) -> tuple[Path, ...]:
    """The files that go along: those of the tokenizer, with the configuration, by which AutoTokenizer chooses a class
    of tokenizers where they name none, and those of images and sound.
    """
    files = {f for pattern in _TOKENIZER for f in folder.glob(pattern) if f.is_file()}
    files |= {folder / "config.json"} if folder / "tokenizer.json" in files else set()
    if task not in ("text-generation", "feature-extraction"):
        own = {folder / name for name in _PROCESSOR if (folder / name).is_file()}
        for file in sorted(own):
            check_json(file)
        files |= own
    return tuple(sorted(files))


@contextlib.contextmanager
def _of_installation(folder: Path) -> Iterator[None]:
    """Of an import that fails, say what is behind it and that no checkpoint is at fault."""
    try:
        yield
    except ImportError as error:
        raise CaptureError(
            f"{folder}: transformers cannot load it here ({line(_innermost(error))}): a package is missing or does "
            "not import; install or mend it, the checkpoint is not at fault"
        ) from error


def converted(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Give the weights that were left as they are in the files their element type; those made since stay."""
    if checkpoint.mapped and checkpoint.folder is not None:
        convert_weights(checkpoint.model, dtype, buffers=stored_tensors(checkpoint.folder))


def _mapped(folder: Path, config: Any, dtype: torch.dtype, task: str, streams: bool) -> Any:
    """The model over weights that stay in the checkpoint's files; None where their names are not the model's own.

    transformers renames and joins weights of some architectures while it loads them.
    """
    known = by_transformers(folder, config)
    if stored_file(folder, config) is None:
        return None
    stored = checkpoint(folder)
    if known:
        return None
    try:
        with without_weights():
            model: Any = auto_class(config, task).from_config(config, dtype=dtype, trust_remote_code=False)
    except ImportError:
        raise
    except Exception as error:  # whatever a constructor makes of odd numbers
        raise CaptureError(f"{folder}: transformers makes no model of its config.json ({line(error)})") from error
    own = {*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers())}
    tied = {n for n, _ in model.named_parameters(remove_duplicate=False)} - {n for n, _ in model.named_parameters()}
    names = {n for n, t in stored.items() if t.dtype}
    check_stored(folder, stored, {n for n, p in model.named_parameters() if p.is_floating_point()} | tied)
    if names - own or {n for n, _ in model.named_parameters()} - names - tied:
        return None
    load_weights(model, folder, dtype=None if streams else dtype)
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model


def _innermost(error: BaseException) -> BaseException:
    """What is behind an error."""
    seen = [error]
    while (behind := seen[-1].__cause__ or seen[-1].__context__) is not None and behind not in seen:
        seen.append(behind)
    return seen[-1]


def _read(folder: Path, config: Any, dtype: torch.dtype, task: str) -> Any:
    given = {"config": config, "dtype": dtype, "local_files_only": True, "trust_remote_code": False}
    try:
        loaded: Any = auto_class(config, task).from_pretrained(folder, **given, output_loading_info=True)
    except ImportError as error:
        if not (way := _way_out(folder, config)):
            raise
        lacks = f"{folder}: transformers cannot read its quantised weights here ({line(error)})"
        raise CaptureError(f"{lacks}: install what it asks for, {way}") from error
    except pickle.UnpicklingError as error:  # of torch.load, whose own words are how to run what is in the file
        said = _innermost(error)
        if code := re.search(r"GLOBAL (\S+)", str(said)):
            raise CaptureError(f"{folder}: its .bin files hold code ({code[1]:.100}), which is not run; ask its author "
                               "for .safetensors") from error  # fmt: skip
        raise CaptureError(f"{folder}: its .bin files are no weights ({line(said)}); download it again") from error
    except Exception as error:  # of quantisers, of files cut off
        way = _way_out(folder, config) or (
            "download it again, or load the model yourself and give that to language_models.export"
        )
        raise CaptureError(f"{folder}: transformers does not load it ({line(error)}); {way}") from error
    model, found = loaded
    missing = sorted(found["missing_keys"])
    if missing and (task != "feature-extraction" or _counts(model, missing)):
        raise CaptureError(f"{folder} has no weights for {', '.join(missing[:4])}: its results would be random")
    unread = sorted(found["unexpected_keys"])
    if unread and task != "feature-extraction":  # there, heads of other tasks
        more = f" and {len(unread) - 4} more" if len(unread) > 4 else ""
        warnings.warn(
            f"{folder}: its config.json has no place for the weights {', '.join(unread[:4])}{more}, which are left out",
            stacklevel=4,
        )
    return model


def _way_out(folder: Path, config: Any) -> str:
    """As `way_out`, with what is stored in the folder."""
    try:
        stored = [*checkpoint(folder).values()]
    except ExportError:
        stored = []
    return way_out(folder, config, stored)


def _counts(model: Any, missing: list[str]) -> bool:
    """True if the vectors of tokens come from weights of these names; poolers behind them may be missing."""
    own = dict(model.named_parameters())
    if not own.keys() >= set(missing):
        return True
    body = model.eval().get_encoder() if model.config.is_encoder_decoder else model.eval()
    try:
        with torch.no_grad():
            before = body(torch.arange(1, 5)[None]).last_hidden_state
            for name in missing:
                own[name].normal_()
            after = body(torch.arange(1, 5)[None]).last_hidden_state
    except Exception:  # a model of two halves whose configuration is that of one wants tokens for both
        return True
    return not torch.equal(before, after)


def _check(folder: Path, tokenizer: bool) -> None:
    try:
        is_file, is_folder = folder.is_file(), folder.is_dir()
    except OSError as error:
        raise CaptureError(f"{folder!s:.200}: {error.strerror}") from error
    if is_file:
        raise CaptureError(f"{folder} is a file: give the folder that it lies in")
    if not is_folder:
        raise CaptureError(
            f"{folder!s:.200}: there is no such folder; download the checkpoint "
            "first (hf download NAME --local-dir DIR)"
        )
    if name := strange(folder):
        raise CaptureError(f"{folder}: {name:.100} is neither a file nor a folder; download the checkpoint again")
    if not (folder / "config.json").is_file():
        raise CaptureError(f"{folder}: there is no config.json; give the folder that save_pretrained wrote")
    if not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise CaptureError(f"{folder}: there are no weights (*.safetensors); download the whole checkpoint")
    if tokenizer and not (folder / "tokenizer.json").is_file():
        raise CaptureError(
            f"{folder}: there is no tokenizer.json; write one by AutoTokenizer...save_pretrained, or "
            "say tokenizer=False (--no-tokenizer) and give tokens yourself"
        )
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", *["tokenizer.json"] * tokenizer):
        if (folder / name).is_file():
            check_json(folder / name)
    if tokenizer:
        _check_tokenizer(folder / "tokenizer.json")
    if (folder / "generation_config.json").is_file():
        _check_settings(folder / "generation_config.json")


def _check_tokenizer(file: Path) -> None:
    """Read it as runtimes do, who say of a wrong one only that they cannot."""
    try:
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(file)).encode("a")
    except Exception as error:  # the class of all that the library says
        raise CaptureError(f"{file} is no tokenizer ({line(error)}); download it again, or say tokenizer=False "
                           "(--no-tokenizer) and give tokens yourself") from error  # fmt: skip


def _check_settings(file: Path) -> None:
    said = read_json(file)
    for kind, fits, names in _SETTINGS:
        if wrong := [n for n in names if said.get(n) is not None and not fits(said[n])]:
            found = f"{wrong[0]} is {said[wrong[0]]!r:.60} and has to be {kind}"
            raise CaptureError(f"{file}: {found}; correct it, or delete the file")


def _integers(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int for v in value)


def copy_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """The files of the tokenizer, whose longest text is the context: transformers' 1e30 is no number to others."""
    config = "tokenizer_config.json"
    for file in checkpoint.tokenizer:
        if file.name != config:
            (folder / file.name).write_bytes(file.read_bytes())
    own = {file.name: file for file in checkpoint.tokenizer}
    if not own.keys() & {config, "tokenizer.json"}:
        return
    # runtimes want one, whatever it says
    said: dict[str, Any] = read_json(own[config]) if config in own else {}
    longest: Any = said.get("model_max_length")
    number = type(longest) in (int, float) and longest > 0
    said["model_max_length"] = int(min(longest, checkpoint.context_length)) if number else checkpoint.context_length
    (folder / config).write_text(json.dumps(said, indent=2, ensure_ascii=False), encoding="utf-8")
