"""Finding targets and handler modules. Nothing foreign is imported unless it is asked for."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ir import foreign
from ir.errors import PluginError, UnknownName, warn
from ir.registry import loading, registries
from ir.target import Target
from ir.target_names import KNOWN, TARGETS, likely
from ir.target_names import targets as targets

HANDLERS = "ir.handlers"  # entry points of plugins: any name -> "module"
VARIABLE = "IR_PLUGINS"
OWN = (  # of ir.export
    "args", "kwargs", "target", "path", "dynamic_shapes", "input_names", "output_names", "handlers", "plugins",
    "discover_plugins", "strict_plugins", "verify", "report", "dtype", "keep_float32", "max_error",
    "deploy",
)  # fmt: skip


@dataclass(frozen=True)
class Plugin:
    """A handler module that would load, and who names it: "explicit", "environment", or "entry point of" whom."""

    module: str
    source: str


def find_target(target: str | Target, options: dict[str, Any]) -> Target:
    """The Target object for a name and its options.

    Raises:
        PluginError: no installed backend has that name; the message says what to install.
        TypeError: the target does not take one of the options.
    """
    if isinstance(target, Target):
        if options:
            raise TypeError(
                f"options {sorted(options)} belong to the Target object itself: {type(target).__name__}(...)"
            )
        return target
    if isinstance(target, type) and issubclass(target, Target):
        raise TypeError(f"target={target.__name__} is a class: give one of it, {target.__name__}(...), or its name")
    kind = _FOUND.get(target) if isinstance(target, str) else None
    kind = kind or _found(target)
    known = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for option in options if len(known) == len(inspect.signature(kind).parameters) else ():
        if option not in known:
            raise TypeError(foreign.refusal(option, target, known, OWN))
    made = kind(**options)
    assert isinstance(made, Target)
    return made


_FOUND: dict[str, Any] = {}  # the classes of targets by name: to look through all that is installed takes 10 ms


def _found(target: Any) -> Any:
    found = {e.value: e for e in entry_points(group=TARGETS) if e.name == target}
    if not found:
        raise _not_found(target)
    if len(found) > 1:
        claims = ", ".join(f"{_named_by(e)} ({value})" for value, e in found.items())
        raise PluginError(f"target {target!r} is claimed by several packages: {claims}; uninstall all but one")
    ((value, entry),) = found.items()
    try:
        kind = _FOUND[target] = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        raise PluginError(f"target {target!r} ({value}) could not be imported: {why:.500}") from error
    return kind


def _not_found(target: Any) -> PluginError:
    """No backend here has the target: one that is known is to be installed, of another name there is none."""
    here = sorted(targets())
    if isinstance(target, (list, tuple, set)):
        way = "graph = ir.capture(model, args), then ir.export(graph, target=...) for each"
        return UnknownName(f"target={target!r:.80} is several: {way}")
    package = KNOWN.get(target) if isinstance(target, str) else None
    if package is None:
        names = [*KNOWN, *(n for n in here if n not in KNOWN)]
        near = f"; did you mean {name}?" if (name := likely(str(target))) else ""
        return UnknownName(f"there is no target {target!r:.80}{near}; targets: {', '.join(names)}")
    where = f"from a checkout pip install ./packages/{package}, from wheels pip install --find-links dist {package}"
    return PluginError(f"target {target!r} is not installed: {where}; installed: {', '.join(here) or 'none'}")


def working_targets() -> tuple[list[Target], list[str]]:
    """The installed targets of this project that can be imported, by their names, and what is said of the others.

    One of another package is imported where it is named, and not by looking for a target.
    """
    working, left = [], []
    for name, value in sorted(targets().items()):
        if name not in KNOWN:
            left.append(f"target {name!r} ({value}) is of another package: --target {name} takes it")
            continue
        try:
            working.append(find_target(name, {}))
        except PluginError as error:  # one that is broken leaves the others
            left.append(str(error))
    return working, left


def warn_of_misspelt() -> None:
    """Warn of handlers for a name that is no target but nearly one; a target that is not installed may have some."""
    for other in registries():
        if other.target in KNOWN or not other.entries or other.target in targets():
            continue
        if near := likely(other.target):
            what = ", ".join(other.ops()[:3])
            warn(f"no target is called {other.target!r}, which {what} has a handler for; did you mean {near!r}?")


def found(explicit: Sequence[str] = (), discover: bool = False) -> list[Plugin]:
    """What would load, in order: the explicit list, IR_PLUGINS, and the entry points if `discover`."""
    plugins = [Plugin(m, "explicit") for m in explicit]
    variable = os.environ.get(VARIABLE, "")
    plugins += [
        Plugin(m.strip(), "environment") for m in variable.replace(",", os.pathsep).split(os.pathsep) if m.strip()
    ]
    if discover:
        plugins += [Plugin(e.value.split(":")[0], _named_by(e)) for e in entry_points(group=HANDLERS)]
    first: dict[str, Plugin] = {}
    for plugin in plugins:
        first.setdefault(plugin.module, plugin)
    return list(first.values())


def _named_by(entry: EntryPoint) -> str:
    return f"entry point of {entry.dist.name} {entry.dist.version}" if entry.dist else "entry point"


def load(explicit: Sequence[str] = (), *, discover: bool = False, strict: bool = False) -> list[Plugin]:
    """Import the plugin modules; of two that handle the same op, the first one wins.

    One that raises while it is imported leaves no registration behind.

    Raises:
        PluginError: of the explicit list one is no module's name; or, with `strict`, one cannot be imported, which is
            a warning without it.

    Warns:
        UserWarning: an op of one of them stays with a plugin that an earlier call loaded.
    """
    if isinstance(explicit, str):
        raise PluginError(f"plugins={explicit!r:.100} is one name: give a list of modules")
    loaded = []
    for plugin in found(explicit, discover):
        before = set(sys.modules)
        try:
            with loading("plugin", plugin.module), contextlib.redirect_stdout(sys.stderr):
                importlib.import_module(plugin.module)
            loaded.append(plugin)
        except BaseException as error:  # whatever a module does when it is imported: sys.exit, too
            _forget(plugin.module, before)
            if isinstance(error, KeyboardInterrupt):
                raise
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            message = f"plugin {plugin.module!s:.200} ({plugin.source}) could not be imported: {why:.500}"
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            misspelt = plugin.source == "explicit" and missing == plugin.module.partition(".")[0] and missing
            if misspelt:
                raise UnknownName(f"{message}; plugins are modules, by the names that import takes") from error
            if strict:
                raise PluginError(message) from error
            warn(message)
    for message in _out_of_turn([p.module for p in loaded]):
        warn(message)
    return loaded


def _forget(plugin: str, before: set[str]) -> None:
    """Let the modules of a plugin that failed be imported anew: what they registered was taken back."""
    package = plugin.partition(".")[0]
    for name in set(sys.modules) - before:
        if name == package or name.startswith(f"{package}."):
            sys.modules.pop(name, None)


def _out_of_turn(modules: Sequence[str]) -> Iterator[str]:
    """What to say of ops that a plugin of this call would handle, had not another been loaded before this call."""
    for place, module in enumerate(modules):
        for registry in registries():
            for (late, op), first in registry.shadowed.items():
                still = any(e.layer == "plugin" and e.source == first for e in registry.entries.get(op, ()))
                if late == module and still and first not in modules[:place]:
                    what = f"plugin {module}: its handler of {op} for {registry.target!r} is not used"
                    yield f"{what}, since {first} was loaded earlier in this process; give it by handlers= to have it"
