"""The command line: `ir`, or `python -m ir`."""

from __future__ import annotations

import sys

_LIBRARIES = ("typer", "rich")  # of the extra `cli`


def main(argv: list[str] | None = None) -> None:
    """Run a command; what goes wrong is one message, and a traceback if `--traceback` asks for it.

    Exit codes: 0 done, 1 refused or different from torch, 2 a wrong call.
    """
    try:
        from ir.cli.command import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        where = "pip install 'ir[cli]', from a checkout pip install './packages/ir[cli]'"
        print(
            f"the command line needs {' and '.join(_LIBRARIES)}: {where}; ir.export in Python does not", file=sys.stderr
        )
        raise SystemExit(1) from None
    run(sys.argv[1:] if argv is None else argv)
