"""A command run: what goes wrong is one message and an exit code."""

from __future__ import annotations

import logging

import typer

from ir.cli.app import app
from ir.cli.printing import Console, plain_warnings
from ir.cli.wrong import elsewhere, is_wrong_call
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
        with plain_warnings():
            code = app(argv, standalone_mode=False, prog_name="ir")
    except Exception as error:
        if "--traceback" in argv:
            raise
        text, code = _told(error)
        stderr.print(text, style="red", highlight=False, markup=False)
        raise SystemExit(code) from None
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        stderr.print("interrupted; what was not done yet is not written", style="red")
    raise SystemExit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> tuple[str, int]:
    """What is printed of an error, and the exit code."""
    if said := getattr(error, "format_message", None):  # typer's own, of a wrong call
        other = elsewhere(getattr(error, "option_name", ""))
        return f"{error.args[0]}{other}" if other else f"{said()}{_instead(error)}", 2
    if is_wrong_call(error):
        return str(error), 2
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.strerror:  # a name that is none
        return f"{error.filename:.200}: {error.strerror.lower()}", 2
    hint = "" if isinstance(error, ExportError) else " (--traceback shows where)"
    return f"{type(error).__name__}: {error}{hint}", 1


def _instead(error: Exception) -> str:
    """The way out where typer names none: a file's name stands without its `-o`."""
    context = getattr(error, "ctx", None)
    options = {o for p in context.command.params for o in p.opts} if context is not None else set()
    if "unexpected extra argument" in str(error) and "--output" in options:
        return "; a file to write is named by -o FILE"
    return ""
