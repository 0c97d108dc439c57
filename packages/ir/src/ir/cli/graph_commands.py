"""`ir show` and `ir diff` as typer reads them; what they need is imported once they run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from ir.cli.options import AsJson, Inputs, SourceName, Task, Traceback
from ir.cli.run_commands import Arrays, Seed, Sizes

# ruff: noqa: UP045 - typer reads Optional
Module = Annotated[
    Optional[str],
    typer.Option("--module", "-m", metavar="PATH", help="list the nodes below a module, such as layer1.0 or 'layer*'"),
]
OpName = Annotated[
    Optional[str], typer.Option("--op", metavar="OP", help="list the nodes of an op, such as conv2d or '*pool*'")
]
Targets = Annotated[
    Optional[list[str]], typer.Option("--target", "-t", help="the targets to ask; all installed ones by default")
]


def show(
    source: SourceName,
    input: Inputs = None,
    task: Task = None,
    target: Targets = None,
    graph: Annotated[bool, typer.Option("--graph", "-g", help="list the nodes behind the summary")] = False,
    module: Module = None,
    op: OpName = None,
    lines: Annotated[
        bool, typer.Option("--source/--no-source", help="name the model's source line behind each node")
    ] = True,
    text: Annotated[
        bool, typer.Option("--text", help="the whole graph as print(graph) has it, and nothing else")
    ] = False,
    html: Annotated[
        Optional[Path], typer.Option("--html", metavar="FILE", help="one page for a browser, without a network")
    ] = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Show a model's graph: a summary, then its nodes on request, or all of it as a page for a browser."""

    from ir import plugins, to_text
    from ir.cli import showing, sources
    from ir.cli.printing import Console, say
    from ir.view.facts import facts
    from ir.view.listing import listing
    from ir.view.page import check_path, write

    if html is not None:
        check_path(html)
    made = sources.captured(source, input, task)
    if text:
        say(to_text(made, source=lines))
        return
    nodes = listing(made, module=module or "", op=op or "", source=lines) if graph or module or op else []
    if (module or op) and not (as_json or html):
        say("\n".join(nodes))
        return
    if target:
        asked = [plugins.find_target(name, {}) for name in target]
    else:
        asked, left = plugins.working_targets()
        say(*(f"left out: {why}" for why in left), sep="\n", end="\n" * bool(left), file=sys.stderr)
    found = facts(made, asked)
    if html is not None:
        write(made, found, html, title=source)
        say(f"written to {html}", file=sys.stderr)
    elif as_json:
        print(json.dumps(found.data(), indent=2))
    else:
        showing.show(found, Console(emoji=False))
        say("\n".join(["", *nodes]) if nodes else "\nir show --graph lists the nodes, --html FILE draws them")


def diff(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="an artifact of any target, or a SOURCE as of export")],
    second: Annotated[str, typer.Argument(metavar="SECOND", help="another")],
    input: Arrays = None,
    size: Sizes = None,
    target: Annotated[
        Optional[str], typer.Option("--target", "-t", help="whose files they are; by their names if nothing is said")
    ] = None,
    task: Task = None,
    rtol: Annotated[
        Optional[float], typer.Option("--rtol", min=0, help="relative tolerance; by type unless said")
    ] = None,
    atol: Annotated[
        Optional[float], typer.Option("--atol", min=0, help="absolute tolerance; by type unless said")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Compare two models or artifacts: inputs and outputs, operations, weights, nodes, and what they compute.

    The exit code is 1 if anything differs; operations are compared within one format alone.
    """
    from ir.cli import differing
    from ir.cli.printing import say

    sides = [differing.Side(name, target, input or (), task) for name in (first, second)]
    found = differing.diff(sides[0], sides[1], input or (), size or (), seed, rtol, atol)
    if as_json:
        print(json.dumps(found.data(), indent=2))
    else:
        say("\n".join(differing.lines(found, *sides)))
    if found.any:
        raise typer.Exit(1)
