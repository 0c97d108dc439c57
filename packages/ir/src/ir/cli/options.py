"""The arguments and options that several commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Optional, get_type_hints

import typer

if TYPE_CHECKING:
    from ir.target import Target

# ruff: noqa: UP045 - typer reads Optional
SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="FILE.pt2, module:callable, timm:NAME, torchvision:NAME, transformers:FOLDER"
    ),
]
TargetName = Annotated[str, typer.Option("--target", "-t", help="onnx, nnef, khronos or eager")]
Options = Annotated[
    Optional[list[str]],
    typer.Option("--option", "-O", metavar="NAME=VALUE", help="an option of the target, such as opset=18; repeatable"),
]
PluginNames = Annotated[
    Optional[list[str]],
    typer.Option("--plugin", "-p", metavar="MODULE", help="a module that registers handlers; repeatable"),
]
Discover = Annotated[bool, typer.Option("--discover-plugins", help="also load installed plugins")]
Inputs = Annotated[
    Optional[list[str]],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=DTYPE[SIZES]",
        help="an example input such as x=float32[batch,3,224,224]: a name is a dynamic dimension; repeatable",
    ),
]
DType = Annotated[Optional[str], typer.Option("--dtype", help="float16, bfloat16 or float64 for weights and inputs")]
Task = Annotated[
    Optional[str], typer.Option("--task", help="the pipeline that chooses the class of a transformers model")
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained", help="the weights that timm or torchvision have for the name")
]
Seed = Annotated[int, typer.Option("--seed", help="of random weights and inputs")]
Traceback = Annotated[bool, typer.Option("--traceback", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]


Targets = Annotated[
    Optional[list[str]], typer.Option("--target", "-t", help="onnx (the default), nnef, khronos, eager; repeatable")
]


@dataclass(frozen=True)
class Asked:
    """What several commands are told of a model: where it is, its inputs, and the handlers of its targets."""

    source: SourceName
    input: Inputs = None
    dtype: DType = None
    task: Task = None
    pretrained: Pretrained = False
    seed: Seed = 0
    option: Options = None
    plugin: PluginNames = None
    discover_plugins: Discover = False


def with_asked(command: Callable[..., None]) -> Callable[..., None]:
    """A command of typer whose first parameter is an `Asked`: the options of that one stand behind its own.

    A parameter of the command's own takes the place of the one of that name, and is given to both.
    """
    hints, shared = get_type_hints(command, include_extras=True), get_type_hints(Asked, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    taken = {p.name: p.replace(annotation=hints[p.name]) for p in own}
    kind = inspect.Parameter.KEYWORD_ONLY
    given = {
        f.name: inspect.Parameter(f.name, kind, default=_default(f), annotation=shared[f.name]) for f in fields(Asked)
    }
    first = {"source": given["source"]} | taken
    merged = [p.replace(kind=kind) for p in (first | {n: p for n, p in given.items() if n not in first}).values()]

    @functools.wraps(command)
    def call(**arguments: Any) -> None:
        asked = Asked(**{n: arguments[n] for n in given})
        command(asked, **{n: arguments[n] for n in taken})

    call.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in merged}
    return call


def named_options(given: list[str] | None) -> dict[str, Any]:
    """What `--option NAME=VALUE` says, repeated.

    Raises:
        BadParameter: one is of another form.
    """
    options: dict[str, Any] = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"--option {item!r}: write NAME=VALUE")
        options[name.replace("-", "_")] = _value(value)
    return options


def chosen_target(name: str, options: dict[str, Any]) -> Target:
    """The target of a name with its options.

    Raises:
        BadParameter: it has no such option, or does not take the value.
        PluginError: there is no such target here.
    """
    from ir.plugins import find_target

    try:
        return find_target(name, options)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _default(field: Any) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _value(text: str) -> Any:
    plain: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
