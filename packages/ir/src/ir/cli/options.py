"""The arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

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
