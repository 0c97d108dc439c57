"""What `ir export SOURCE` names: a .pt2 file, `module:callable`, or a model of timm, torchvision or transformers."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from ir import plugins
from ir.cli import transformers_models
from ir.cli.inputs import Input, arguments, in_dtype, parse
from ir.cli.quantizing import KINDS, quantize
from ir.cli.wrong import WrongCall
from ir.errors import CaptureError, ExportError
from ir.graph import Graph
from ir.importer.capture import capture
from ir.opening import target_of
from ir.words import a, meant


@dataclass(frozen=True)
class Request:
    """What the command line says beside the source."""

    inputs: Sequence[Input] = ()
    dtype: torch.dtype | None = None
    pretrained: bool = False
    task: str | None = None
    quantize: str | None = None


@dataclass(frozen=True)
class Source:
    """A model and its example arguments; `name` is what an artifact is called that is given no name.

    `code` makes the model anew as `model`, where a few lines of Python can.
    """

    model: Any
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    dynamic_shapes: Any = None
    notes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


def load(text: str, request: Request) -> Source:
    """The model that `text` names.

    Raises:
        WrongCall: the text is none of a source, or it needs `--input`.
        CaptureError: its library is not installed, or its code raises.
    """
    kind, colon, rest = text.partition(":")
    if text.lower().endswith(".pt2") and not Path(text).exists():
        raise WrongCall(f"{text:.200}: no such file")
    if Path(text).exists():
        return _file(text, request)
    if not colon or not rest:
        raise WrongCall(_no_source(text))
    reader = {"timm": _timm, "torchvision": _torchvision, "transformers": _transformers}.get(kind, _callable)
    return reader(text if reader is _callable else rest, request)


def request(
    inputs: Sequence[str] | None,
    dtype: str | None = None,
    task: str | None = None,
    pretrained: bool = False,
    integers: str | None = None,
) -> Request:
    """What the options of a command say.

    Raises:
        WrongCall: an input has another form than it should.
        BadParameter: there is no such floating element type, or no such kind of integers.
    """
    if integers is not None and integers not in KINDS:
        raise typer.BadParameter(f"--quantize {integers!r:.40}: write {' or '.join(KINDS)}")
    chosen = None if dtype is None else getattr(torch, dtype, None)
    if dtype is not None and not (isinstance(chosen, torch.dtype) and chosen.is_floating_point):
        raise typer.BadParameter(f"--dtype {dtype!r:.40}: write float16, bfloat16, float32 or float64")
    return Request([parse(text) for text in inputs or ()], chosen, pretrained, task, integers)


def captured(text: str, inputs: Sequence[str] | None, task: str | None) -> Graph:
    """The graph of what `text` names; raises as `load` and `ir.capture`."""
    given = load(text, request(inputs, task=task))
    return capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)


def check_there(text: str) -> None:
    """Raises WrongCall for the name of a file that is not there, where artifacts are taken as well as sources."""
    if not Path(text).exists() and ":" not in text:
        raise WrongCall(f"{text:.200}: no such file; give an artifact of any target, or a SOURCE as of ir export")


def _no_source(text: str) -> str:
    if text.isidentifier() and Path(f"{text}.py").is_file():
        return f"{text}.py is Python: write {text}:NAME, of a model or of a function that gives one"
    forms = "a .pt2 file, module:callable, timm:NAME, torchvision:NAME or transformers:FOLDER"
    return f"{text!r:.200} is no file. A source is {forms}"


_WEIGHTS = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")


def _check_file(path: Path) -> None:
    """Raises WrongCall for a file or folder that is plainly something else than a .pt2, with what to write."""
    suffix, name = path.suffix.lower(), path.name
    if suffix == ".py":
        raise WrongCall(f"{name} is Python: write {path.stem}:NAME, of a model or of a function that gives one")
    if suffix in _WEIGHTS:
        raise WrongCall(f"{name} holds weights and no code: write module:NAME, of a function that gives the model")
    if (path / "config.json").is_file():
        raise WrongCall(f"{path} is a folder of transformers: write transformers:{path}")
    if suffix != ".pt2":
        target = _owner(path)
        if target:
            what = f"{name} is an artifact of target {target!r}, which `ir run` and `ir diff` take"
            raise WrongCall(f"{what}; a SOURCE is the model that it was made of")
    if path.is_dir():
        raise WrongCall(f"{path} is a folder: a SOURCE is a .pt2 file, module:callable, or transformers:FOLDER")


def _owner(path: Path) -> str:
    try:
        return target_of(path).name
    except ExportError:
        return ""


def _file(text: str, request: Request) -> Source:
    _check_file(Path(text))
    if request.inputs or request.dtype or request.quantize:
        what = "leave --input, --dtype and --quantize out"
        raise WrongCall(f"{text:.200} was captured with its inputs and types: {what}")
    name = Path(text).name
    return Source(Path(text), name[: -len(".pt2")] if name.lower().endswith(".pt2") else name)


def _made(
    model: Any,
    name: str,
    request: Request,
    own: Sequence[Input],
    notes: Sequence[str] = (),
    code: Sequence[str] = (),
) -> Source:
    """The model in evaluation mode with the inputs that were asked for, else its own."""
    chosen = list(request.inputs) or list(own)
    if not chosen:
        raise WrongCall(f"{name}: its inputs are not known; say them: {_example(model)}")
    _check_names(model, chosen, name)
    if isinstance(model, torch.nn.Module):
        model = model.eval().to(request.dtype) if request.dtype else model.eval()
        notes = [*notes, *_quantized(model, request)]
        code = [*code, f"model = model.eval(){f'.to({request.dtype})' if request.dtype else ''}"] if code else ()
    args, kwargs, shapes = arguments(in_dtype(chosen, request.dtype))
    return Source(model, name, args, kwargs, shapes, tuple(notes), () if request.quantize else tuple(code))


def _check_names(model: Any, chosen: Sequence[Input], what: str) -> None:
    """Raises WrongCall for an input that the model's forward does not take."""
    parameters = inspect.signature(getattr(model, "forward", model)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for given in (i.name for i in chosen if i.name and i.name not in parameters):
        raise WrongCall(f"--input {given}: {what} takes {', '.join(parameters)}{meant(given, parameters)}")


def _example(model: Any) -> str:
    """`--input` for each argument that has no default, by its name; the sizes are an image's, as an example."""
    parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return " ".join(f"--input '{name}=float32[batch,3,224,224]'" for name in names or ["x"])


def _weights(request: Request) -> list[str]:
    return [] if request.pretrained else ["weights are random; --pretrained takes the library's own"]


def _timm(name: str, request: Request) -> Source:
    timm = _library("timm")
    model = _built(lambda: timm.create_model(name, pretrained=request.pretrained), f"timm:{name}")
    size = model.default_cfg["input_size"]
    code = ["import timm", f"model = timm.create_model({name!r})"]
    return _made(model, name.replace("/", "_"), request, [_image(*size)], _weights(request), code)


def _torchvision(name: str, request: Request) -> Source:
    models = _library("torchvision.models")
    model = _built(
        lambda: models.get_model(name, weights="DEFAULT" if request.pretrained else None), f"torchvision:{name}"
    )
    code = ["import torchvision", f"model = torchvision.models.get_model({name!r})"]
    return _made(model, name, request, [_image(3, 224, 224)], _weights(request), code)


def _image(*size: int) -> Input:
    return Input("", torch.float32, (("batch", 0), *size))


def _transformers(folder: str, request: Request) -> Source:
    if not Path(folder).is_dir():
        hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", folder)
        how = f": hf download {folder} --local-dir FOLDER" if hub else ""
        raise WrongCall(f"transformers:{folder:.200}: there is no such folder; download the checkpoint first{how}")
    library = _library("transformers")
    model, own, notes = _built(
        lambda: transformers_models.load(library, folder, request.task, bool(request.inputs)), f"transformers:{folder}"
    )
    return _made(model, Path(folder).resolve().name, request, own, notes)


def _here() -> str:
    """The current folder, from which modules are imported from now on: the `ir` command does not begin with it."""
    place = os.getcwd()
    if place not in sys.path:
        sys.path.insert(0, place)
    return place


def load_plugins(names: Sequence[str], discover: bool) -> None:
    """The plugins that the command line names, looked for in the current folder too.

    Raises:
        PluginError: one cannot be imported, where it names some: without its handlers the answer would be another.
    """
    if names:
        _here()
    plugins.load(names, discover=discover, strict=bool(names))


def _callable(text: str, request: Request) -> Source:
    """A module's attribute: a model, or a function that gives one, alone or with arguments and dynamic shapes."""
    module, _, attribute = text.partition(":")
    place = _here()
    try:
        value: Any = importlib.import_module(module)
    except ImportError as error:
        kind = WrongCall if module.startswith(error.name or " ") else CaptureError
        raise kind(f"{text:.200}: {error}; a source is module:callable, looked for in {place} too") from error
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{text:.200}: {module} cannot be imported: {_said(error)}") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise WrongCall(f"{text:.200}: {module} has no {attribute!r:.100}{meant(part, dir(value))}")
        value = getattr(value, part)
    calls = callable(value) and not isinstance(value, torch.nn.Module)
    if calls:
        value = _built(value, text)
    model, *given = value if isinstance(value, tuple) else (value,)
    made = f"{module}.{attribute}{'()' * calls}{'[0]' * isinstance(value, tuple)}"
    code = ["import sys", 'sys.path.insert(0, ".")', f"import {module}", f"model = {made}"]
    name = attribute.rpartition(".")[2]
    if not callable(model):
        way = "; load it by model.load_state_dict(...) and give the model" if isinstance(model, Mapping) else ""
        raise CaptureError(f"{text:.200} gives {a(type(model).__name__)}, and no model{way}")
    if request.inputs or not given:
        return _made(model, name, request, (), code=code)
    if request.dtype:
        raise WrongCall(f"{text:.200} gives its own arguments: leave --dtype out, or say --input")
    args = given[0] if isinstance(given[0], tuple) else (given[0],)
    kwargs, shapes = ([*given[1:], None, None])[:2]
    notes = _quantized(model.eval(), request) if isinstance(model, torch.nn.Module) else []
    code += ["model = model.eval()"] if isinstance(model, torch.nn.Module) else []
    return Source(model, name, args, kwargs, shapes, tuple(notes), () if request.quantize else tuple(code))


def _quantized(model: torch.nn.Module, request: Request) -> list[str]:
    return [quantize(model, request.quantize)] if request.quantize else []


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # one that does not fit the installed torch fails in many ways
        library, own = name.partition(".")[0], f"torch=={torch.__version__.partition('+')[0]}"
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            raise CaptureError(f"{library} is not installed: pip install {library} {own}") from error
        guilty = next((n for n in ("torchvision", "torchaudio") if n in str(error)), library)
        why = f"{guilty} does not fit the installed torch {torch.__version__} ({' '.join(str(error).split())[:200]})"
        raise CaptureError(f"{why}: pip install --force-reinstall {guilty} {own}") from error


def _built(make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except CaptureError:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{what:.200}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """What an error of the user's own code says, in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}".rstrip(": ")
