"""A certificate: every operator signature of a program, alone on the target, on random and adversarial inputs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ir.debug.odd_inputs import FIXED, Tried, tried_on_all
from ir.debug.running import watched_values
from ir.debug.values import Values
from ir.dims import Expr
from ir.errors import OutputError
from ir.files import opened, staged
from ir.graph import Graph, Node, Value, map_arg
from ir.registry import Registry
from ir.target import Target
from ir.text import arg_text
from ir.words import counted

_FILE = "certificates.json"
_FORM = 2  # of a row in that file


@dataclass(frozen=True)
class Signature:
    """One operator with its static arguments and the types of its operands, and a node that has it."""

    text: str
    node: str
    module: str
    tried: tuple[Tried, ...]
    cached: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing differs on random numbers, ties and zeros; what differs beyond them is listed."""
        return not any(t.fails for t in self.tried)

    @property
    def differs_at(self) -> tuple[str, ...]:
        """The kinds of inputs on which something differs."""
        return tuple(t.kind for t in self.tried if t.differs)


@dataclass(frozen=True)
class Certificate:
    """What was tried with a program on a target.

    Attributes:
        target: the target's name.
        versions: of torch, the runtimes and this package.
        signatures: every operator signature, in the order of the program.
        not_tried: the nodes that are not among them, and why.
    """

    target: str
    versions: Mapping[str, str]
    signatures: tuple[Signature, ...]
    not_tried: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs on random numbers, ties and zeros."""
        return all(s.ok for s in self.signatures)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the report of a verification says of it."""
        found = [(s, ", ".join(s.differs_at)) for s in self.signatures if s.differs_at]
        return tuple(f"alone, {s.text.partition('(')[0]} (%{s.node}) differs at: {kinds}" for s, kinds in found)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {"signature": s.text, "node": s.node, "module": s.module, "ok": s.ok, "cached": s.cached,
             "tried": [_row(t) for t in s.tried]}
            for s in self.signatures
        ]  # fmt: skip
        about = {"target": self.target, "ok": self.ok, "versions": dict(self.versions)}
        return about | {"signatures": rows, "not_tried": list(self.not_tried)}

    def json(self) -> str:
        """`data` as JSON."""
        return json.dumps(self.data(), indent=1)

    def save(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            OutputError: there is something else, or it cannot be written.
        """
        with staged(path, check_own) as temporary:
            temporary.write_text(self.json())

    def __str__(self) -> str:
        known = sum(s.cached for s in self.signatures)
        signatures = counted(len(self.signatures), "operator signature")
        lines = [f"{signatures} on {self.target}, {known} of them tried before"]
        for s in self.signatures:
            said = [f"differs at {t.kind}: {t.differs}" for t in s.tried if t.differs]
            said += [f"not tried at {t.kind}: {t.not_tried}" for t in s.tried if t.not_tried not in ("", FIXED)]
            lines += [f"{s.text}  {'; '.join(said)}"] if said else []
        fixed = sum(any(t.not_tried == FIXED for t in s.tried) for s in self.signatures)
        lines += [f"not tried at other sizes: {fixed} of them, of fixed sizes"] if fixed else []
        lines += [f"not tried: {x}" for x in self.not_tried]
        return "\n".join(lines)


def _row(tried: Tried) -> dict[str, Any]:
    error = tried.error if math.isfinite(tried.error) else str(tried.error)
    said = {"differs": tried.differs, "fails": tried.fails, "not_tried": tried.not_tried}
    return {"kind": tried.kind, "error": error, **said}


def certify(
    graph: Graph, target: Target, registry: Registry, inputs: Sequence[Tensor], *, cache: Path | None = None
) -> Certificate:
    """Try every operator signature of the graph; what `cache` (a folder) knows of these versions is not tried again."""
    versions = {p: v for p in ("torch", "ir", *target.runtimes) if (v := _version(p))}
    torch.manual_seed(0)
    example = Values(graph).run(inputs)
    nodes: dict[str, Node] = {}
    left: list[str] = []
    for node in graph.nodes:
        why = "it holds graphs of its own" if node.graphs else "it draws random numbers"
        if not watched_values(graph, [node]):
            continue
        if node.graphs or graph.context.draws(node):
            left.append(f"%{node.name} = {node.overload}: {why}")
        else:
            nodes.setdefault(signature_of(node), node)
    known = _read(cache)
    keys = {text: _key(text, target, versions) for text in nodes}
    fresh = {t: n for t, n in nodes.items() if keys[t] not in known}
    made = tried_on_all(graph, target, registry, example, fresh)
    known |= {keys[t]: [_row(x) for x in tried] for t, tried in made.items()}
    _write(cache, known)
    rows = []
    for text, node in nodes.items():
        tried = made[text] if text in made else tuple(_restored(r) for r in known[keys[text]])
        rows.append(Signature(text, node.name, node.origin.module, tried, cached=text not in made))
    return Certificate(target.name, versions, tuple(rows), tuple(left))


def signature_of(node: Node) -> str:
    """The op, its static arguments, and the types of its operands."""
    typed = {k: map_arg(a, lambda x: x.type if isinstance(x, Value) else x) for k, a in node.args.items()}
    kept = {k: a for k, a in typed.items() if k not in node.defaults or node.defaults[k] != a}
    return f"{node.overload}({', '.join(f'{k}={_arg(a)}' for k, a in kept.items())})"


def _arg(arg: Any) -> str:
    return f"[{', '.join(map(_arg, arg))}]" if isinstance(arg, tuple) else arg_text(arg) if _plain(arg) else str(arg)


def _plain(arg: Any) -> bool:
    return arg is None or isinstance(arg, (bool, int, float, str, Expr))


# -- what was tried before ---------------------------------------------------------------------------------------------


def check_own(path: Path) -> None:
    """Raises OutputError for a file that is no certificate."""
    try:
        found = _json(path) if os.path.lexists(path) else {"signatures": []}
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "signatures" not in found:
        raise OutputError(f"{path} is no certificate of an export and stays as it is: move it away")


def certificate_path(path: Path) -> Path:
    """Where the certificate of an artifact lies: beside it."""
    return path.with_name(f"{path.name}.certificate.json")


def cache_folder() -> Path:
    """Where certificates are kept: $IR_CACHE, else `ir` in the user's cache folder."""
    own = os.environ.get("IR_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "ir")


def _key(text: str, target: Target, versions: Mapping[str, str]) -> str:
    options = sorted((k, repr(v)) for k, v in vars(target).items() if _plain(v))
    return hashlib.sha256(repr((_FORM, text, target.name, options, sorted(versions.items()))).encode()).hexdigest()


def _read(cache: Path | None) -> dict[str, Any]:
    if cache is None:
        return {}
    try:
        found: dict[str, Any] = _json(cache / _FILE)
        return found
    except (OSError, ValueError):  # none yet, or one of a process that was killed
        return {}


def _json(path: Path) -> Any:
    with opened(path) as file:
        return json.load(file)


def _write(cache: Path | None, known: Mapping[str, Any]) -> None:
    if cache is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written is none
            cache.mkdir(parents=True, exist_ok=True)
            with staged(cache / _FILE) as temporary:
                temporary.write_text(json.dumps(known))


def _restored(row: Mapping[str, Any]) -> Tried:
    return Tried(**{**row, "error": float(row["error"])})


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
