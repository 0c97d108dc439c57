"""The commands as typer reads them; what they need is imported once they run, so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from ir.cli import debug_commands, graph_commands, llm, run_commands
from ir.cli.options import (
    AsJson,
    Discover,
    DType,
    Inputs,
    Options,
    PluginNames,
    Pretrained,
    Seed,
    SourceName,
    TargetName,
    Task,
    Traceback,
    chosen_target,
    named_options,
)
from ir.cli.printing import Console

# ruff: noqa: UP045 - typer reads Optional
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="print the version and leave")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="show where an error comes from")] = False,
) -> None:
    """Export PyTorch models to ONNX, NNEF (tract) and a compiled eager program."""
    if version:
        from importlib.metadata import version as of

        import ir

        print(f"ir {ir.__version__}, torch {of('torch')}")
        raise typer.Exit


@app.command(short_help="Export a model, and compare each file with torch.")
def export(
    source: SourceName,
    target: Annotated[
        Optional[list[str]], typer.Option("--target", "-t", help="onnx (the default), nnef, khronos, eager; repeatable")
    ] = None,
    output: Annotated[
        Optional[Path],
        typer.Option("--output", "-o", help="the file or a folder; of several targets without suffix"),
    ] = None,
    input: Inputs = None,
    dtype: DType = None,
    quantize: Annotated[
        Optional[str], typer.Option("--quantize", help="int8 or int4 for the weights of linear layers, by torchao")
    ] = None,
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
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress and no summary")] = False,
    traceback: Traceback = False,
) -> None:
    """Export a model to one or more targets, compare each artifact with torch, and say what was written."""
    from ir.cli import exporting, sources, summary

    if opset is None and quantize == "int4":
        opset = 21  # the first that stores 4 bits
    call = exporting.Call(
        target or ["onnx"], named_options(option), opset, output, verify, plugin or (), discover_plugins
    )
    request = sources.request(input, dtype, task, pretrained, quantize)
    found = exporting.export(source, request, call, seed, Console(stderr=True, quiet=quiet))
    if as_json:
        print(summary.as_json(found))
    elif not quiet:
        summary.show(found, Console(emoji=False))
    errors = Console(stderr=True, soft_wrap=True, emoji=False)
    for o in found:
        if o.error:
            errors.print(f"{o.target}: {o.error}", style="red", highlight=False, markup=False)
    if any(o.error for o in found):
        raise typer.Exit(1)


@app.command(short_help="List how a target takes each op of a model.")
def ops(
    source: SourceName,
    target: TargetName = "onnx",
    input: Inputs = None,
    task: Task = None,
    option: Options = None,
    plugin: PluginNames = None,
    discover_plugins: Discover = False,
    traceback: Traceback = False,
) -> None:
    """List the model's ops: native on the target, through their body, or missing."""
    from rich.table import Table

    from ir.cli import sources
    from ir.coverage import coverage

    chosen = chosen_target(target, named_options(option))
    sources.load_plugins(plugin or (), discover_plugins)
    rows = coverage(sources.captured(source, input, task), chosen)
    table = Table("op", "count", "how", "through", title=f"{source} on {target}")
    for row in rows:
        table.add_row(row.op, str(row.count), row.how, ", ".join(row.through))
    Console(emoji=False).print(table, markup=False)
    if any(row.how == "missing" for row in rows):
        raise typer.Exit(1)


@app.command(short_help="List the installed targets and plugins.")
def plugins(discover_plugins: Discover = True) -> None:
    """List the installed targets, and the plugins that would load and who names them; nothing is imported."""
    from rich.table import Table

    from ir import plugins as installed

    table = Table("kind", "name", "from")
    for name, value in sorted(installed.targets().items()):
        table.add_row("target", name, value)
    for p in installed.found(discover=discover_plugins):
        table.add_row("handlers", p.module, p.source)
    Console(emoji=False).print(table, markup=False)


app.command(short_help="Show a model: a summary, its nodes, a page.")(graph_commands.show)
app.command(short_help="Compare two models or files, and what they compute.")(graph_commands.diff)
app.command(short_help="Find the layer that differs from torch.")(debug_commands.debug)
app.command(short_help="Make a failing model as small as it gets.")(debug_commands.reduce)
app.command(short_help="Say where the time goes, by node and module.")(debug_commands.profile)
app.command(short_help="Run a file in its own runtime.")(run_commands.run)
app.command(short_help="Time files in turns.")(run_commands.bench)
app.command(short_help="Export a language model to a folder that generates text.")(llm.llm)
