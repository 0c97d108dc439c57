"""`ir debug`, `ir reduce` and `ir profile` as typer reads them; what they need is imported once they run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from ir.cli.options import AsJson, Asked, TargetName, Targets, Traceback, with_asked
from ir.cli.printing import say
from ir.cli.run_commands import Sizes, Threads

# ruff: noqa: UP045 - typer reads Optional
MaxError = Annotated[
    Optional[float], typer.Option("--max-error", min=0, help="the error that passes, of the largest magnitude")
]
AtSizes = Annotated[
    Optional[list[str]],
    typer.Option("--size", metavar="NAME=N", help="of a dynamic dimension, other than the example's; repeatable"),
]


@with_asked
def debug(
    asked: Asked,
    target: Targets = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="rows that are printed; 0 prints all")] = 20,
    in_order: Annotated[bool, typer.Option("--in-order", help="rows in the order of the program")] = False,
    memory: Annotated[
        int, typer.Option("--memory", min=1, help="MB of values that one program of the target holds")
    ] = 1024,
    max_error: MaxError = None,
    size: AtSizes = None,
    html: Annotated[
        Optional[Path], typer.Option("--html", metavar="FILE", help="the page of ir show, coloured by errors")
    ] = None,
    node_data: Annotated[
        Optional[Path], typer.Option("--node-data", metavar="FOLDER", help="the table for Model Explorer")
    ] = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Find the layer that differs: every node on its own and in the whole program, beside torch.

    Own errors are those of the node alone in the target's runtime, fed torch's own operands. The exit code is 1 if a
    node differs by itself beyond tolerance. With several targets the verdict says whose fault it looks like.
    """
    from ir.cli import debugging

    request = debugging.Request(asked, target or ())
    debugging.check_places(html, node_data)
    graph = request.graph()
    tables = debugging.tables(request, graph, memory << 20, max_error, size or ())
    if html is not None:
        debugging.write_page(request, graph, tables, html)
        say(f"written to {html}", file=sys.stderr)
    if node_data is not None:
        for path in debugging.write_node_data(request, graph, tables, node_data):
            say(f"written to {path}", file=sys.stderr)
    if as_json:
        print(json.dumps([json.loads(t.json()) for t in tables], indent=1))
    else:
        say("\n\n".join(t.text(rows or None, in_order=in_order) for t in tables))
        for line in debugging.verdict(tables):
            say(line)
    if not all(t.ok for t in tables):
        raise typer.Exit(1)


@with_asked
def reduce(
    asked: Asked,
    target: TargetName = "onnx",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.py", help="where the script goes")] = Path(
        "reduced.py"
    ),
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=10, help="when to stop looking for a smaller one; half of them is a hang"),
    ] = 120,
    max_error: MaxError = None,
    size: AtSizes = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Make a failing program as small as it gets while it fails the same way, as a script for an issue.

    FILE.py needs torch and the runtime alone, FILE_ir.py does the same through ir.export. What fails is an export, a
    run, or numbers that differ. Of a model that torch.export refuses the smallest module is left that is refused.
    """
    from ir.cli import arrays, debugging
    from ir.debug.reduce import reduce as reduced

    request = debugging.Request(asked, [target])
    given = request.source()
    found = reduced(
        given.model, given.args or None, given.kwargs or None, dynamic_shapes=given.dynamic_shapes,
        target=request.chosen[0], sizes=arrays.sizes(size or ()), path=output, seconds=seconds,
        max_error=max_error, code=given.code,
    )  # fmt: skip
    say(json.dumps(found.data(), indent=1) if as_json else found)


@with_asked
def profile(
    asked: Asked,
    source: Annotated[
        str, typer.Argument(metavar="ARTIFACT|SOURCE", help="a file of any target, or a SOURCE as of export")
    ],
    target: Annotated[
        Optional[list[str]],
        typer.Option("--target", "-t", help="of a source: onnx (the default), nnef, eager; repeatable"),
    ] = None,
    compare: Annotated[
        Optional[Path], typer.Option("--compare", metavar="ARTIFACT", help="another file: which modules gained or lost")
    ] = None,
    runs: Annotated[
        int, typer.Option("--runs", "-n", min=1, help="calls that are measured; tract chooses its own")
    ] = 20,
    rows: Annotated[int, typer.Option("--rows", min=0, help="rows that are printed; 0 prints all")] = 30,
    html: Annotated[Optional[Path], typer.Option("--html", metavar="FILE", help="a flame chart by module")] = None,
    size: Sizes = None,
    threads: Threads = None,
    as_json: AsJson = False,
    traceback: Traceback = False,
) -> None:
    """Say where the time goes by node, module and source line, by the runtime's own profiler.

    A file of ONNX or NNEF knows modules and lines if it was exported with -O metadata=true, else names of nodes.
    A .pt2 file is eager's unless --target asks for another. Two targets are compared by module.
    """
    from ir.cli import debugging
    from ir.debug.flame import check_path, page
    from ir.debug.profile import compared

    if html is not None:
        check_path(html)
    request = debugging.Request(asked, target or ())
    found = debugging.profiles(request, size or (), threads, runs, compare)
    if html is not None:
        html.write_text(page(source, found))
        say(f"written to {html}", file=sys.stderr)
    if as_json:
        print(json.dumps([p.data() for p in found], indent=1))
        return
    say("\n\n".join(p.text(rows or None) for p in found))
    for other in found[1:]:
        say("\n".join(["", *compared(found[0], other)]))
