"""Names of values and nodes, and the metadata of a node: where in the model it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ir.graph import Node
from ir.opened import Place

PLACE = "ir.place"  # in a node's `meta`, which no file has
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
    """Where a node comes from: `namespace` (the modules), `source` (file:line), `op` and `value` (torch's names)."""
    modules = "/".join((*path, *node.origin.path))
    found = {"namespace": modules, "source": node.origin.source, "op": node.overload, "value": node.name}
    return {key: text for key, text in found.items() if text}


def place(metadata: Mapping[str, str]) -> Place:
    """What `metadata` says."""
    name, op, source = (metadata.get(key, "") for key in ("value", "op", "source"))
    return Place(name, op, metadata.get("namespace", "").replace("/", "."), source)
