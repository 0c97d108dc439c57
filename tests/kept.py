"""What a sweep has found so far: a file of JSON, a line for each program, which the next call goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows(file: Path) -> list[Any]:
    """The lines, as they were written one after another; a last one that was cut off is taken out of the file."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    if lines and not lines[-1].endswith("\n"):
        file.write_text("".join(lines[:-1]))
    return [json.loads(line) for line in lines if line.endswith("\n")]
