"""A live model through torch.export, in up to three ways: the first that takes the model is the capture.

As torch.onnx does it: non-strict runs the model's own Python; with deferred run-time assertions a condition on sizes
that torch would fix a dimension for is asserted by the program instead; strict reads the byte code, where `int()` of
a number out of a tensor stays a symbol. Only a model that a rung refuses pays for the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from ir.errors import CaptureError
from ir.importer import autograd_functions, caches, fake_rules, guards
from ir.importer.known_numbers import followed
from ir.importer.torch_api import pytree, quiet_export, size_oblivious

_DEFERRED = "prefer_deferred_runtime_asserts_over_guards"
_FOLLOWED = "non-strict with the numbers in tensors followed"
RUNGS: dict[str, dict[str, Any]] = {
    "non-strict": {"strict": False},
    _FOLLOWED: {"strict": False},
    "non-strict with deferred run-time assertions": {"strict": False, _DEFERRED: True},
    "strict with deferred run-time assertions": {"strict": True, _DEFERRED: True},
}


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)


@dataclass(frozen=True)
class Rung:
    """How a program was captured, and why not in the ways before."""

    name: str
    refused: tuple[str, ...] = ()  # one line for each rung that refused the model

    @property
    def deferred(self) -> bool:
        """True if conditions on sizes are assertions of the graph, which torch notes as guards otherwise."""
        return _DEFERRED in RUNGS[self.name]

    def __str__(self) -> str:
        return "".join([f"captured by torch.export, {self.name}", *(f"\n  {line}" for line in self.refused)])


def exported(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> tuple[ExportedProgram, Rung]:
    """The program of the first rung that takes the model; the model is left as it was.

    Raises:
        CaptureError: none does. It is the first rung's, with a line for each of the others.
    """
    refused: list[tuple[str, str, Exception | None]] = []
    kept: set[type] = set()
    for name, options in RUNGS.items():
        if options["strict"] and kept:
            names = ", ".join(sorted(c.__qualname__ for c in kept))
            refused.append((name, f"not tried, for it would trace through {names} in place of its op", None))
            continue
        if name == _FOLLOWED and not _asks_for_data(refused[-1][2]):
            continue
        follows: Any = followed(model) if name == _FOLLOWED else contextlib.nullcontext(set())
        try:
            watched = caches.watched()
            with _settled(model, (args, kwargs), options, kept), _obliviously(bool(refused)), watched, follows as held:
                program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, **options)
        except CaptureError:  # ours: another rung would only go round what it says
            raise
        except Exception as error:
            refused.append((name, f"torch.export refused the model: {_told(error)}", error))
            continue
        written = held & set(program.graph_signature.buffers_to_mutate.values())
        fixed = guards.truncated(program) or (f"the model writes to {', '.join(written)}" if written else "")
        if not fixed:
            return program, Rung(name, tuple(f"{n} refused it: {_line(e or text)}" for n, text, e in refused))
        refused.append((name, fixed, None))
    (_, said, first), *others = refused
    raise CaptureError("\n".join([said, *(f"{n}: {_line(e or text)}" for n, text, e in others)])) from first


def _asks_for_data(error: BaseException | None) -> bool:
    """True if torch.export stopped at a question about a number that was read out of a tensor."""
    return error is not None and ("data-dependent" in str(error) or "DataDependent" in type(error).__name__)


@contextlib.contextmanager
def _settled(model: torch.nn.Module, arguments: Any, options: Any, kept: set[type]) -> Iterator[None]:
    functions = contextlib.nullcontext() if options["strict"] else autograd_functions.kept(kept)
    with functions, fake_rules.dynamic(), _unmarked(arguments), _unchanged(model):
        yield


@contextlib.contextmanager
def _obliviously(again: bool) -> Iterator[None]:
    """From the second rung on torch's kernels ask for no sizes that they can do without, as in torch.onnx.

    What torch logs and prints of a rung that fails, the graph so far, is not for who gets the next one's program.
    """
    with quiet_export(), size_oblivious() if again else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _unmarked(arguments: Any) -> Iterator[None]:
    """Inside of the block torch notes at the tensors which sizes are dynamic; after an error it leaves that there."""
    noted = [(t, dict(vars(t))) for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    try:
        yield
    finally:
        for tensor, before in noted:
            vars(tensor).clear()
            vars(tensor).update(before)


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """What `forward` leaves at the model's modules while it is traced (fake tensors, counters) is taken away again."""
    before = _contents(model)
    try:
        yield
    finally:
        for container, content in before:
            _put_back(container, content)


def _contents(model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Every container at the model's modules with a copy, None for an empty one: most are."""
    found, open_, seen = [], [vars(m) for m in model.modules()], set()
    while open_:
        container: Any = open_.pop()
        if id(container) not in seen:
            seen.add(id(container))
            found.append((container, container.copy() if container else None))
            values = container.values() if isinstance(container, dict) else container
            open_ += [v for v in values if type(v) in _CONTAINERS]
    return found


def _put_back(container: Any, before: Any) -> None:
    if before is None:
        container.clear()
    elif isinstance(container, dict):
        if container.keys() != before.keys() or any(container[k] is not v for k, v in before.items()):
            for key in container.keys() - before.keys():
                del container[key]
            container.update(before)
    elif isinstance(container, set):
        container ^= container ^ before
    elif len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
        container[:] = before


# -- errors ------------------------------------------------------------------------------------------------------------

_REMEDIES = {  # for torch's errors that say no more than the op's name
    "DataDependentOutputException": " gives a Python number that depends on the data; compute with tensors instead",
    "DynamicOutputShapeException": " gives a shape that depends on the data, which torch has no symbols for; write it "
    "with other ops, or as a custom op with a body",
}


# What torch adds to every refusal, and what it says of a size that the model's code fixes.
_ADDED = re.compile(r"\s*(For more information about this error, see: \S+|The error above occurred when calling[^\n]*)")
_FIXED = re.compile(
    r"You marked L\['(\w+)'\]\.size\(\)\[(\d+)\] as dynamic but your code specialized it to be a constant \((\d+)\)"
)


def _told(error: Exception) -> str:
    fixed = [f"the axis {axis} of {name} is {size} whatever comes" for name, axis, size in _FIXED.findall(str(error))]
    if fixed:
        return f"its code fixes sizes that dynamic_shapes calls dynamic ({', '.join(fixed)}): leave them out there"
    return f"{_ADDED.sub('', str(error))}{_REMEDIES.get(type(error).__name__, '')}{_registration(error)}{_notes(error)}"


def _registration(error: Exception) -> str:
    """The lines that make a pytree of a class that torch.export does not know."""
    found = re.search(r"<class '(\S+)'>", str(error))
    if found is None or "pytree" not in str(error):
        return ""
    module, _, name = found[1].rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if dataclasses.is_dataclass(cls):
        lines = f"torch.export.register_dataclass({name})"
    else:
        held = list(inspect.signature(cls).parameters) if isinstance(cls, type) else ["a", "b"]
        parts = ", ".join(f"c.{p}" for p in held)
        lines = (
            "torch.utils._pytree.register_pytree_node(\n"
            f"        {name}, lambda c: ([{parts}], None), lambda parts, _: {name}(*parts),\n"
            f"        serialized_type_name={found[1]!r},\n    )"
        )
    return f"\n  say which tensors a {name} holds, before the export:\n    import torch\n    {lines}"


def _line(error: Exception | str) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0] if lines else type(error).__name__:.300}"


def _notes(error: BaseException | None) -> str:
    """What was noted at the error, or at one that it came from."""
    notes: list[str] = []
    while error is not None and not notes:
        notes = getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return "".join(f"\n  {note}" for note in dict.fromkeys(notes))
