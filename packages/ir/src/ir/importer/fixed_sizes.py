"""Which of the model's lines fixes a size that was to be dynamic.

torch keeps that with the symbols of a trace, which the frames of the error that it raised still hold.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ir.errors import causes
from ir.importer.torch_api import locating

_NOT_THE_MODEL = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
Own = Callable[[Any], bool]

# torch's name of a size: that of the argument, the way to the tensor in it, and the axis
SIZE = re.compile(r"L\['(\w+)'\]((?:\[[^\]]+\]|\.(?!size)\w+)*)\.size\(\)\[(\d+)\]")


def located(own: Own) -> contextlib.AbstractContextManager[None]:
    """A block in which torch's notes of sizes have the model's line also where one of its kernels asks."""

    def line(loc: Any) -> traceback.FrameSummary | None:
        if not isinstance(loc.framework_loc, traceback.FrameSummary) or own(loc.framework_loc):
            return None
        frames = (f for f, _ in traceback.walk_stack(None) if not f.f_code.co_filename.startswith(_NOT_THE_MODEL))
        places = (traceback.FrameSummary(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames)
        return next(filter(own, places), None)

    return locating(line)


def fixing(error: BaseException, own: Own) -> Iterator[str]:
    """For each size that the model's code fixes, the line that does."""
    env = _symbols(error)
    sources: Mapping[Any, Any] = getattr(env, "var_to_sources", None) or {}
    found = (getattr(env, "replacements_slocs", None) or {}).items()
    for symbol, loc in found:
        frame = loc.maybe_user_loc or loc.framework_loc
        for source in sources.get(symbol, ())[:1]:
            sized = SIZE.search(source.name)
            if sized and isinstance(frame, traceback.FrameSummary) and own(frame):
                yield f"the axis {sized[3]} of {sized[1]}{sized[2]} is fixed at {place(frame)}"


def place(frame: traceback.FrameSummary) -> str:
    """ "model.py:12  `the line`"."""
    return f"{frame.filename}:{frame.lineno}" + (f"  `{frame.line}`" if frame.line else "")


def _symbols(error: BaseException | None) -> Any:
    """The table of symbols that the frames of an error, or of what it came from, hold."""
    for one in causes(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            for held in list(frame.f_locals.values()):
                env = held if hasattr(type(held), "create_unbacked_symint") else _of_mode(held)
                if env is not None:
                    return env
    return None


def _of_mode(held: Any) -> Any:
    return getattr(held, "shape_env", None) if type(held).__name__ == "FakeTensorMode" else None
