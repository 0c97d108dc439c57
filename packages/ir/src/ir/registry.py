"""Names to handlers, in layers; one class for every target.

A handler has one shape everywhere, `(h, x, dim, keepdim=False) -> result`. The first layer that knows an op wins:
this call's own handlers, those registered at run time (newest first), plugins (first wins), the backend's own. Within
a layer "aten::add.Tensor" beats "aten::add", and the newest `since_version` not above the one written beats older.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from ir.errors import DuplicateHandlerError

LAYERS = ("call", "runtime", "plugin", "builtin")
HandlerFn = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Handler:
    """A registered function and where it came from."""

    op: str
    fn: HandlerFn
    since_version: int
    layer: str
    source: str

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The handler's parameters after `h`."""
        _, *rest = inspect.signature(self.fn).parameters.values()
        return {p.name: p for p in rest}

    def parameter(self, name: str) -> inspect.Parameter | None:
        """The parameter that takes this argument of the schema: of the same name, or `from_` for `from`."""
        return self.parameters.get(name) or self.parameters.get(f"{name}_")

    @functools.cached_property
    def takes_all(self) -> bool:
        """True if the handler declares **kwargs."""
        return any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())


def place_of(fn: Any) -> str:
    """file:line of a function, or its repr for a callable without source."""
    fn = inspect.unwrap(fn)
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def names_of(op: str, overload: str | None = None) -> tuple[str, str]:
    """What an overload (by its full name) is registered under: its own name, "aten::add.default" too, then the op's."""
    return overload if overload and overload != op else f"{op}.default", op


_LAYER: ContextVar[tuple[str, str]] = ContextVar("layer", default=("runtime", ""))
_JOURNAL: ContextVar[list[Callable[[], object]] | None] = ContextVar("journal", default=None)


@contextlib.contextmanager
def loading(layer: str, module: str = "") -> Iterator[None]:
    """Registrations inside the block, in any registry, belong to `layer`; a plugin names its module.

    What a plugin registered is taken back if the block raises: half of it would be worse than none.
    """
    if layer not in LAYERS:
        raise ValueError(f"layer {layer!r}: one of {LAYERS}")
    undo: list[Callable[[], object]] | None = [] if layer == "plugin" else None
    tokens = _LAYER.set((layer, module)), _JOURNAL.set(undo)
    try:
        yield
    except BaseException:
        for action in reversed(undo or ()):
            action()
        raise
    finally:
        _LAYER.reset(tokens[0])
        _JOURNAL.reset(tokens[1])


def load_handlers(package: str) -> None:
    """Import every module of a backend's package of handlers, which register themselves as the backend's own."""
    with loading("builtin"):
        for family in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{family.name}")


def put(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Set an entry of a table of registrations; a plugin that fails while it is imported does not leave it there."""
    journal = _JOURNAL.get()
    if journal is not None:
        restore = functools.partial(table.__setitem__, key, table[key]) if key in table else None
        journal.append(restore or functools.partial(table.pop, key, None))
    table[key] = value


def layer() -> str:
    """The layer that a registration made here and now belongs to."""
    return _LAYER.get()[0]


@dataclass
class Registry:
    """The handlers of one target.

    `fallback` may give a function for any op without an entry, `adapt` makes handlers of functions of another shape.
    """

    target: str
    entries: dict[str, list[Handler]] = field(default_factory=dict)
    fallback: Callable[[str], HandlerFn | None] | None = None
    adapt: Callable[[Any], HandlerFn] | None = None
    shadowed: dict[tuple[str, str], str] = field(default_factory=dict)  # plugin and op -> the plugin that was first
    used: set[str] = field(default_factory=set)  # the names of handlers of this call that a node was found to be of

    def register(
        self, op: str, *more: str, since_version: int = 0, override: bool = False
    ) -> Callable[[HandlerFn], HandlerFn]:
        """Decorator: this function handles these ops.

        "aten::add" stands for all overloads, "aten::add.Tensor" for one, "aten::add.default" for the unnamed one.

        Raises:
            DuplicateHandlerError: the layer has a handler for the op and version, and `override` is False.
        """

        def decorate(fn: HandlerFn) -> HandlerFn:
            for name in (op, *more):
                self.add(name, fn, since_version=since_version, override=override)
            return fn

        return decorate

    def add(self, op: str, fn: HandlerFn, *, since_version: int = 0, override: bool = False) -> None:
        """Register without a decorator, for tables."""
        if "::" not in op:
            raise ValueError(f"{op!r} is no op name: write 'namespace::name' or 'namespace::name.overload'")
        layer, module = _LAYER.get()
        new = Handler(op, fn, since_version, layer, module or place_of(fn))
        entries = self.entries.get(op, [])
        same = [e for e in entries if e.layer == new.layer and e.since_version == since_version]
        if same and not override:
            if new.layer == "plugin" and same[0].source != new.source:
                put(self.shadowed, (new.source, op), same[0].source)
                return  # the first plugin that names an op keeps it
            raise DuplicateHandlerError(
                f"{self.target}: {op} (since_version={since_version}) is registered in the {new.layer} layer by "
                f"{place_of(same[0].fn)} already; {place_of(fn)} may replace it with override=True"
            )
        put(self.entries, op, [e for e in entries if e not in same] + [new])

    def remove(self, op: str, *, layer: str | None = None, since_version: int | None = None) -> None:
        """Take out the handlers of an op: of one layer or of all, of one version or of all."""
        kept = [
            e
            for e in self.entries.get(op, ())
            if layer not in (None, e.layer) or since_version not in (None, e.since_version)
        ]
        if kept:
            self.entries[op] = kept
        else:
            self.entries.pop(op, None)

    def lookup(self, op: str, overload: str | None = None, version: int | None = None) -> Handler | None:
        """The handler that serves `op` (as `overload`, its full name) at a version, or None."""
        for layer in LAYERS:
            for name in names_of(op, overload):
                fitting = [
                    e
                    for e in self.entries.get(name, ())
                    if e.layer == layer and (version is None or e.since_version <= version)
                ]
                if fitting:
                    found = max(fitting, key=lambda e: e.since_version)
                    self.used.update((name,) if layer == "call" else ())
                    return replace(found, fn=self.adapt(found.fn)) if self.adapt else found
        fn = self.fallback(overload or op) if self.fallback else None
        return Handler(op, fn, 0, "builtin", place_of(fn)) if fn else None

    def with_handlers(self, handlers: Mapping[str, HandlerFn] | None) -> Registry:
        """A view in which `handlers` come before everything else; the registry itself stays as it is."""
        if not handlers:
            return self
        view = Registry(self.target, {k: list(v) for k, v in self.entries.items()}, self.fallback, self.adapt)
        with loading("call"):
            for op, fn in handlers.items():
                view.add(op, fn)
        return view

    def ops(self) -> tuple[str, ...]:
        """Every name with a handler of its own, sorted."""
        return tuple(sorted(self.entries))


_REGISTRIES: dict[str, Registry] = {}


def registry(target: str) -> Registry:
    """The one registry of a target name, made on first use: a custom op may name a target that is not installed."""
    return _REGISTRIES.setdefault(target, Registry(target))


def forget(op: str) -> None:
    """Take the handlers of an op and its overloads out of every registry, those of the layer that is being loaded."""
    for found in _REGISTRIES.values():
        for name in [n for n in found.entries if n == op or n.startswith(f"{op}.")]:
            found.remove(name, layer=layer())


def registries() -> tuple[Registry, ...]:
    """All that were made so far."""
    return tuple(_REGISTRIES.values())
