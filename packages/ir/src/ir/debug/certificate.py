"""A certificate: every operator signature of a program, alone on the target, on random and adversarial inputs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ir.debug.errors import distance
from ir.debug.running import Runs, watched_values
from ir.debug.values import Values
from ir.dims import Expr, evaluate
from ir.files import staged
from ir.graph import Graph, Node, Value, map_arg
from ir.importer.evaluate import tensor_of
from ir.registry import Registry
from ir.target import Target
from ir.text import arg_text

ORDINARY = ("random", "size 1", "empty")  # inputs on which a difference fails the verification
_FILE = "certificates.json"


@dataclass(frozen=True)
class Tried:
    """One kind of inputs: the worst error of scale, and what differs; or why it was not tried."""

    kind: str
    error: float = 0.0
    differs: str = ""
    not_tried: str = ""


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
        """Whether nothing differs on ordinary inputs; nan, infinities, ties and extremes are listed, not judged."""
        return not any(t.differs and t.kind in ORDINARY for t in self.tried)


@dataclass(frozen=True)
class Certificate:
    """What was tried with a program on a target.

    Attributes:
        target: the target's name.
        versions: of torch, the runtimes and this package.
        signatures: every operator signature, in the order of the program.
    """

    target: str
    versions: Mapping[str, str]
    signatures: tuple[Signature, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs on ordinary inputs."""
        return all(s.ok for s in self.signatures)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {"signature": s.text, "node": s.node, "module": s.module, "ok": s.ok, "cached": s.cached,
             "tried": [_row(t) for t in s.tried]}
            for s in self.signatures
        ]  # fmt: skip
        return {"target": self.target, "ok": self.ok, "versions": dict(self.versions), "signatures": rows}

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        with staged(path) as temporary:
            temporary.write_text(json.dumps(self.data(), indent=1))

    def __str__(self) -> str:
        known = sum(s.cached for s in self.signatures)
        lines = [f"{len(self.signatures)} operator signatures on {self.target}, {known} of them tried before"]
        for s in self.signatures:
            said = [
                f"{t.kind}: {t.differs or f'not tried, {t.not_tried}'}" for t in s.tried if t.differs or t.not_tried
            ]
            lines += [f"{s.text}  {'; '.join(said)}"] if said else []
        return "\n".join(lines)


def _row(tried: Tried) -> dict[str, Any]:
    error = tried.error if math.isfinite(tried.error) else str(tried.error)
    return {"kind": tried.kind, "error": error, "differs": tried.differs, "not_tried": tried.not_tried}


def certify(
    graph: Graph, target: Target, registry: Registry, inputs: Sequence[Tensor], *, cache: Path | None = None
) -> Certificate:
    """Try every operator signature of the graph; what `cache` (a folder) knows of these versions is not tried again."""
    versions = {p: v for p in ("torch", "ir", *target.runtimes) if (v := _version(p))}
    torch.manual_seed(0)
    example = Values(graph).run(inputs)
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        if watched_values(graph, [node]) and not node.graphs and not graph.context.draws(node):
            nodes.setdefault(signature_of(node), node)
    known = _read(cache)
    keys = {text: _key(text, target, versions) for text in nodes}
    fresh = {t: n for t, n in nodes.items() if keys[t] not in known}
    made = dict(_tried(graph, target, registry, example, fresh))
    known |= {keys[t]: [_row(x) for x in tried] for t, tried in made.items()}
    _write(cache, known)
    rows = []
    for text, node in nodes.items():
        tried = made[text] if text in made else tuple(_restored(r) for r in known[keys[text]])
        rows.append(Signature(text, node.name, node.origin.module, tried, cached=text not in made))
    return Certificate(target.name, versions, tuple(rows))


def signature_of(node: Node) -> str:
    """The op, its static arguments, and the types of its operands."""
    typed = {k: map_arg(a, lambda x: x.type if isinstance(x, Value) else x) for k, a in node.args.items()}
    kept = {k: a for k, a in typed.items() if k not in node.defaults or node.defaults[k] != a}
    return f"{node.overload}({', '.join(f'{k}={_arg(a)}' for k, a in kept.items())})"


def _arg(arg: Any) -> str:
    return f"[{', '.join(map(_arg, arg))}]" if isinstance(arg, tuple) else arg_text(arg) if _plain(arg) else str(arg)


def _plain(arg: Any) -> bool:
    return arg is None or isinstance(arg, (bool, int, float, str, Expr))


# -- inputs ------------------------------------------------------------------------------------------------------------


def _floats(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda t: make(t).to(t.dtype) if t.dtype.is_floating_point else t


def _with(*numbers: float) -> Callable[[Tensor], Tensor]:
    """Random numbers, every third of which is one of these."""

    def make(t: Tensor) -> Tensor:
        made = torch.randn(t.shape).flatten()
        for i, number in enumerate(numbers):
            made[3 * i :: 3 * len(numbers)] = number
        return made.reshape(t.shape)

    return _floats(make)


def _extremes(t: Tensor) -> Tensor:
    info = torch.finfo(t.dtype)
    numbers = torch.tensor([info.max, info.min, info.tiny, 1.0, -1.0, 0.0], dtype=torch.float64)
    return numbers[torch.arange(t.numel()) % len(numbers)].reshape(t.shape)


KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "random": _floats(lambda t: torch.randn(t.shape)),
    "ties": _floats(lambda t: torch.randint(-1, 2, t.shape)),
    "zeros": _with(0.0, -0.0),
    "nan": _with(math.nan),
    "infinities": _with(math.inf, -math.inf),
    "extremes": _floats(_extremes),
}


def _tried(
    graph: Graph, target: Target, registry: Registry, example: Values, nodes: Mapping[str, Node]
) -> Iterator[tuple[str, tuple[Tried, ...]]]:
    found: dict[str, list[Tried]] = {t: [] for t in nodes}
    for kind, make in KINDS.items():
        torch.manual_seed(0)
        given = {v: make(t) for v, t in example.of.items() if v not in graph.weights}
        for text, tried in _compared(graph, target, registry, nodes, given, example.sizes, kind):
            found[text].append(tried)
    symbols = {n for n, s in graph.sources.items() if s.value in graph.inputs}
    for kind, size in (("size 1", 1), ("empty", 0)):
        ranges = graph.symbols
        sizes = {n: size if n in symbols and (ranges[n].min or 0) <= size else v for n, v in example.sizes.items()}
        if sizes == example.sizes:
            continue
        given = dict(_resized(graph, example, sizes))
        dynamic = {t: n for t, n in nodes.items() if all(v in given or v in graph.weights for v in n.inputs)}
        dynamic = {t: n for t, n in dynamic.items() if any(not v.type.is_static for v in n.inputs)}
        for text, tried in _compared(graph, target, registry, dynamic, given, sizes, kind):
            found[text].append(tried)
    yield from ((t, tuple(tried)) for t, tried in found.items())


def _resized(graph: Graph, example: Values, sizes: Mapping[str, Any]) -> Iterator[tuple[Value, Tensor]]:
    """Random values of other sizes; indices are 0."""
    for value, tensor in example.of.items():
        if value in graph.weights:
            continue
        with contextlib.suppress(KeyError, ZeroDivisionError, ValueError):
            shape = [evaluate(d, sizes) for d in value.type.shape]
            if min(shape, default=0) >= 0:
                made = torch.randn(shape).to(tensor.dtype) if tensor.dtype.is_floating_point else None
                yield value, torch.zeros(shape, dtype=tensor.dtype) if made is None else made


def _compared(
    graph: Graph,
    target: Target,
    registry: Registry,
    nodes: Mapping[str, Node],
    given: Mapping[Value, Tensor],
    sizes: Mapping[str, Any],
    kind: str,
) -> Iterator[tuple[str, Tried]]:
    """How these nodes do on operands of one kind."""
    runs = Runs(graph, target, registry)
    expected: dict[Node, list[Tensor]] = {}
    for text, node in nodes.items():
        wanted = _by_torch(graph, node, given, sizes)
        if isinstance(wanted, str):
            yield text, Tried(kind, not_tried=f"torch refuses it: {wanted}")
        else:
            expected[node] = wanted
    made = runs.alone(list(expected), given)
    for text, node in nodes.items():
        if node not in expected:
            continue
        if node in runs.failed:
            said = runs.failed[node].partition("\n")[0]
            refused = kind == "empty"  # said aloud by a runtime without empty tensors
            yield text, Tried(kind, not_tried=said) if refused else Tried(kind, math.inf, said)
            continue
        of = dict(zip(node.outputs, expected[node], strict=True))
        errors = [distance(made[v], of[v]) for v in watched_values(graph, [node]) if v in made]
        worst = max(errors, key=lambda e: (bool(e.reason), e.largest), default=None)
        if worst is not None:
            yield text, Tried(kind, worst.relative, worst.reason)


def _by_torch(graph: Graph, node: Node, given: Mapping[Value, Tensor], sizes: Mapping[str, Any]) -> list[Tensor] | str:
    run = Values(graph, sizes=dict(sizes))
    try:
        for value in node.inputs:
            run.of[value] = given[value] if value in given else tensor_of(graph.weights[value])
        with torch.no_grad():
            return run.results(node)
    except Exception as error:  # torch's own, of any kind
        return str(error).partition("\n")[0] or type(error).__name__


# -- what was tried before ---------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where certificates are kept: $IR_CACHE, else `ir` in the user's cache folder."""
    own = os.environ.get("IR_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "ir")


def _key(text: str, target: Target, versions: Mapping[str, str]) -> str:
    options = sorted((k, repr(v)) for k, v in vars(target).items() if _plain(v))
    return hashlib.sha256(repr((text, target.name, options, sorted(versions.items()))).encode()).hexdigest()


def _read(cache: Path | None) -> dict[str, Any]:
    if cache is None:
        return {}
    try:
        found: dict[str, Any] = json.loads((cache / _FILE).read_text())
        return found
    except (OSError, ValueError):  # none yet, or one of a process that was killed
        return {}


def _write(cache: Path | None, known: Mapping[str, Any]) -> None:
    if cache is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written is none
            cache.mkdir(parents=True, exist_ok=True)
            with staged(cache / _FILE) as temporary:
                temporary.write_text(json.dumps(known))


def _restored(row: Mapping[str, Any]) -> Tried:
    return replace(Tried(row["kind"]), error=float(row["error"]), differs=row["differs"], not_tried=row["not_tried"])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
