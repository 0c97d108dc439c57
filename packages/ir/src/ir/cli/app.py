"""The commands: export a model, show its graph, list its ops or the plugins that would load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Optional

import torch
import typer
from rich.console import Console
from rich.table import Table

import ir
from ir import plugins as _plugins
from ir.cli import inputs, llm, sources, summary
from ir.coverage import coverage

# ruff: noqa: UP045 - typer reads Optional
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(llm.llm)

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


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="print the version and leave")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="show where an error comes from")] = False,
) -> None:
    """Export PyTorch models to ONNX, NNEF (tract) and a compiled eager program."""
    if version:
        print(f"ir {ir.__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.command()
def export(
    source: SourceName,
    target: Annotated[
        Optional[list[str]], typer.Option("--target", "-t", help="onnx (the default), nnef, khronos, eager; repeatable")
    ] = None,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="the file; of several targets its name without a suffix")
    ] = None,
    input: Inputs = None,
    dtype: DType = None,
    task: Task = None,
    pretrained: Pretrained = False,
    seed: Seed = 0,
    opset: Annotated[Optional[int], typer.Option("--opset", help="of ONNX")] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="run the artifact and compare it with torch")
    ] = True,
    option: Options = None,
    plugin: PluginNames = None,
    discover_plugins: Discover = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress and no summary")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", hidden=True)] = False,
) -> None:
    """Export a model to one or more targets, compare each artifact with torch, and say what was written."""
    options = _options(option) | ({} if opset is None else {"opset": opset})
    targets = [
        (name, _plugins.find_target(name, options if name == "onnx" or opset is None else _options(option)))
        for name in target or ["onnx"]
    ]
    progress = Console(stderr=True, quiet=quiet)
    seconds: dict[str, float] = {}
    torch.manual_seed(seed)
    with _stage(progress, "load", seconds):
        given = sources.load(source, _request(input, dtype, task, pretrained))
    with _stage(progress, "capture", seconds):
        graph = ir.capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)
    found = []
    for name, chosen in targets:
        path = _place(given.name, output, chosen, len(targets))
        try:
            times = dict(seconds)
            with _stage(progress, "export and verify" if verify else "export", times, name):
                program = ir.export(
                    graph,
                    target=chosen,
                    path=path,
                    verify=verify,
                    plugins=plugin or (),
                    discover_plugins=discover_plugins,
                )
            found.append(summary.outcome(program, times, verify))
        except ir.ExportError as error:
            if len(targets) == 1:
                raise
            found.append(summary.Outcome(name, error=f"{type(error).__name__}: {error}"))
    if as_json:
        print(summary.as_json(found))
    elif not quiet:
        summary.show(found, given.notes, Console(emoji=False))
    for o in found:
        if o.error:
            Console(stderr=True, soft_wrap=True, emoji=False).print(
                f"{o.target}: {o.error}", style="red", highlight=False, markup=False
            )
    if any(o.error for o in found):
        raise typer.Exit(1)


@app.command()
def show(
    source: SourceName,
    input: Inputs = None,
    task: Task = None,
    lines: Annotated[
        bool, typer.Option("--source/--no-source", help="name the model's source line behind each node")
    ] = True,
    traceback: Annotated[bool, typer.Option("--traceback", hidden=True)] = False,
) -> None:
    """Print the graph as text."""
    print(ir.to_text(_graph(source, input, task), source=lines))


@app.command()
def ops(
    source: SourceName,
    target: TargetName = "onnx",
    input: Inputs = None,
    task: Task = None,
    option: Options = None,
    plugin: PluginNames = None,
    discover_plugins: Discover = False,
    traceback: Annotated[bool, typer.Option("--traceback", hidden=True)] = False,
) -> None:
    """List the model's ops: native on the target, through their body, or missing."""
    chosen = _plugins.find_target(target, _options(option))
    _plugins.load(plugin or (), discover=discover_plugins)
    rows = coverage(_graph(source, input, task), chosen)
    table = Table("op", "count", "how", "through", title=f"{source} on {target}")
    for row in rows:
        table.add_row(row.op, str(row.count), row.how, ", ".join(row.through))
    Console(emoji=False).print(table)
    if any(row.how == "missing" for row in rows):
        raise typer.Exit(1)


@app.command()
def plugins(discover_plugins: Discover = True) -> None:
    """List the installed targets, and the plugins that would load and who names them; nothing is imported."""
    table = Table("kind", "name", "from")
    for name, value in sorted(_plugins.targets().items()):
        table.add_row("target", name, value)
    for p in _plugins.found(discover=discover_plugins):
        table.add_row("handlers", p.module, p.source)
    Console(emoji=False).print(table)


def _graph(source: str, input: list[str] | None, task: str | None) -> ir.Graph:
    given = sources.load(source, _request(input, None, task, False))
    return ir.capture(given.model, given.args, given.kwargs, dynamic_shapes=given.dynamic_shapes)


def _request(input: list[str] | None, dtype: str | None, task: str | None, pretrained: bool) -> sources.Request:
    chosen = None if dtype is None else getattr(torch, dtype, None)
    if dtype is not None and not (isinstance(chosen, torch.dtype) and chosen.is_floating_point):
        raise typer.BadParameter(f"--dtype {dtype!r:.40}: write float16, bfloat16, float32 or float64")
    return sources.Request([inputs.parse(text) for text in input or ()], chosen, pretrained, task)


def _place(name: str, output: Path | None, target: ir.Target, count: int) -> Path:
    if output is None:
        return Path(f"{name}{target.suffix}")
    return output if count == 1 else Path(f"{output}{target.suffix}")


@contextmanager
def _stage(console: Console, name: str, seconds: dict[str, float], target: str = "") -> Iterator[None]:
    """Time a part of the work; a terminal shows what is being done."""
    start = time.perf_counter()
    if console.is_terminal and not console.quiet:
        with console.status(f"{target} {name}".strip()):
            yield
    else:
        yield
    seconds[name] = time.perf_counter() - start


def _options(given: list[str] | None) -> dict[str, Any]:
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
