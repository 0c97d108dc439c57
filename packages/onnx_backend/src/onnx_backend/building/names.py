"""Names of values and nodes, and the metadata of a node: where in the model it comes from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache

from ir.graph import Node, Origin

_FORBIDDEN = re.compile(r"[^\w./:-]")


class Names:
    """Names that are taken; equal ones are told apart by a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self._counts: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """The name, or the name with a number behind it if it is taken."""
        name = _FORBIDDEN.sub("_", name)
        if name in self.taken:
            n = self._counts.get(name, 0) + 1
            while f"{name}_{n}" in self.taken:
                n += 1
            self._counts[name] = n
            name = f"{name}_{n}"
        self.taken.add(name)
        return name


def node_name(node: Node, path: tuple[str, ...] = ()) -> str:
    """The modules that a node lies in, then its op: `/layers.0/self_attn/linear`; the call of a module is its path."""
    op = () if node.op == "ir::call" else (node.op.partition("::")[2],)
    return "/" + "/".join((*path, *node.origin.path, *op))


def metadata(node: Node, path: tuple[str, ...] = ()) -> dict[str, str]:
    """Where a node comes from: `namespace` (the modules), `source` (file and line), `op` (as torch names it)."""
    origin = node.origin
    found = {"namespace": "/".join((*path, *origin.path)), "source": _source(origin), "op": node.overload}
    return {key: text for key, text in found.items() if text}


def _source(origin: Origin) -> str:
    return f"{_importable(origin.file)}:{origin.line}" if origin.file else ""


@lru_cache(maxsize=1024)
def _importable(file: str) -> str:
    """The file below the folder that it is imported from, so that a model does not tell where it was exported."""
    roots = sorted((os.path.join(p, "") for p in sys.path if p), key=len, reverse=True)
    return next((file[len(r) :] for r in roots if file.startswith(r)), os.path.basename(file))
