"""A command run: what goes wrong is one message and an exit code."""

from __future__ import annotations

import logging

import typer
from rich.console import Console

from ir.cli.app import app
from ir.errors import ExportError

_INTERRUPTED = 130  # what typer itself makes of Ctrl-C


def run(argv: list[str]) -> None:
    """Run a command; what goes wrong is one message, and a traceback if `--traceback` asks for it.

    Exit codes: 0 done, 1 refused or different from torch, 2 a wrong call.
    """
    if "--traceback" not in argv:
        logging.disable(logging.CRITICAL)  # torch logs what its exceptions say as well
    stderr = Console(stderr=True, soft_wrap=True, emoji=False)
    try:
        code = app(argv, standalone_mode=False, prog_name="ir")
    except Exception as error:
        if "--traceback" in argv:
            raise
        said = getattr(error, "format_message", None)  # a wrong call, to typer
        text = said() if said else f"{type(error).__name__}: {error}"
        hint = "" if said or isinstance(error, ExportError) else " (--traceback shows where)"
        stderr.print(f"{text}{hint}", style="red", highlight=False, markup=False)
        raise SystemExit(2 if said else 1) from None
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        stderr.print("interrupted; what was not done yet is not written", style="red")
    raise SystemExit(code if isinstance(code, int) else 0)
