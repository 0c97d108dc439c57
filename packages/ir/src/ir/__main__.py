"""`python -m ir`: export a .pt2 file, show its graph, list its ops or the plugins that would load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

import ir
from ir import plugins as _plugins
from ir.coverage import coverage

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()

Model = Annotated[Path, typer.Argument(metavar="MODEL.pt2", help="a program saved by torch.export.save")]
TargetName = Annotated[str, typer.Option("--target", "-t", help="onnx, nnef, khronos or eager")]
Options = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads this one
    typer.Option("--option", "-O", metavar="NAME=VALUE", help="an option of the target, such as opset=18; repeatable"),
]
PluginNames = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--plugin", "-p", metavar="MODULE", help="a module that registers handlers; repeatable"),
]
Discover = Annotated[bool, typer.Option("--discover-plugins", help="also load installed plugins")]


@app.command()
def export(
    model: Model,
    target: TargetName = "onnx",
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="where to write the artifact")] = None,  # noqa: UP045
    verify: Annotated[bool, typer.Option("--verify", help="run it and compare with torch")] = False,
    option: Options = None,
    plugin: PluginNames = None,
    discover_plugins: Discover = False,
) -> None:
    """Export a program to a target, and verify what was written."""
    start = time.perf_counter()
    program = ir.export(
        model,
        target=target,
        path=output,
        verify=verify,
        plugins=plugin or (),
        discover_plugins=discover_plugins,
        **_options(option),
    )
    seconds = time.perf_counter() - start
    place = f" -> {output}" if output else ""
    console.print(f"{model}{place}: {len(program.graph.nodes)} nodes, {seconds:.2f} s", highlight=False)
    if program.report is not None:
        console.print(str(program.report), highlight=False)


@app.command()
def show(
    model: Model,
    source: Annotated[bool, typer.Option(help="name the model's source line behind each node")] = True,
) -> None:
    """Print the graph as text."""
    print(ir.to_text(ir.capture(model), source=source))


@app.command()
def ops(
    model: Model,
    target: TargetName = "onnx",
    option: Options = None,
    plugin: PluginNames = None,
    discover_plugins: Discover = False,
) -> None:
    """List the model's ops: native on the target, through their body, or missing."""
    chosen = _plugins.find_target(target, _options(option))
    _plugins.load(plugin or (), discover=discover_plugins)
    rows = coverage(ir.capture(model), chosen)
    table = Table("op", "count", "how", "through", title=f"{model} on {target}")
    for row in rows:
        table.add_row(row.op, str(row.count), row.how, ", ".join(row.through))
    console.print(table)
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
    console.print(table)


def _options(given: list[str] | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise typer.BadParameter(f"{item!r}: write NAME=VALUE")
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


def main() -> None:
    """Run the command line; an export error is a message, not a traceback."""
    try:
        app()
    except ir.ExportError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"{type(error).__name__}: {error}", style="red", highlight=False, markup=False
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
