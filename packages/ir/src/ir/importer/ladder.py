"""A live model through torch.export, in several ways: the first that takes the model is the capture.

As torch.onnx does it: non-strict runs the model's own Python; with deferred run-time assertions a condition on sizes
that torch would fix a dimension for is asserted by the program instead; strict reads the byte code, where `int()` of
a number out of a tensor stays a symbol. A model that takes a path of its own while it is exported is tried on the one
that it takes when it runs, and one that derives by torch.func with its operators below autograd. Only a model that a
rung refuses pays for the next one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from ir.errors import CaptureError, note
from ir.graph import Specialized
from ir.importer import (
    assertions,
    autograd_functions,
    caches,
    conversions,
    counters,
    decisions,
    fake_rules,
    gradients,
    guards,
)
from ir.importer.fixed_sizes import located
from ir.importer.imports import import_whole
from ir.importer.known_numbers import followed
from ir.importer.not_exporting import not_exporting
from ir.importer.private_writes import written_buffers
from ir.importer.refusals import asks_for_data, first_line, in_transform, is_own, missing_fake, told
from ir.importer.size_arguments import around_model
from ir.importer.torch_api import (
    TRACERS,
    FakeTensor,
    exported_below_autograd,
    is_functorch_wrapped_tensor,
    noting_deferred,
    pytree,
    quiet_export,
    size_oblivious,
    unvalidated_distributions,
)

_DEFERRED = "prefer_deferred_runtime_asserts_over_guards"
_FOLLOWED = "non-strict with the numbers in tensors followed"
_NOT_EXPORTING = "non-strict on the path that the model takes when it is not exported"
_DERIVED = "non-strict with the transforms of torch.func carried out"
_WRAPPED = "torch.export takes tensors inside of a transform of torch.func for constants"
RUNGS: dict[str, dict[str, Any]] = {
    "non-strict": {"strict": False},
    _FOLLOWED: {"strict": False},
    "non-strict with deferred run-time assertions": {"strict": False, _DEFERRED: True},
    _NOT_EXPORTING: {"strict": False},
    _DERIVED: {"strict": False},
    "strict with deferred run-time assertions": {"strict": True, _DEFERRED: True},
}


# torch's own recurrent modules are told to register what are their parameters, which nobody can do anything about
_OWN_WEIGHTS = r"The tensor attributes? (self\.[\w.]*_flat_weights\[\d+\](, )?)+ (was|were) assigned during export"
_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)


@dataclass(frozen=True)
class Rung:
    """How a program was captured, and why not in the ways before."""

    name: str
    refused: tuple[str, ...] = ()  # one line for each rung that refused the model
    decided: tuple[decisions.Decision, ...] = ()  # what the model's code asked of sizes
    specialized: tuple[Specialized, ...] = ()  # those answers that are others at sizes of 0 and 1
    narrowed: tuple[str, ...] = ()  # sizes with a range that is narrower than was asked for

    @property
    def answers(self) -> tuple[bool, Callable[[Any, str], bool]]:
        """What `guards.branches` asks: whether conditions on sizes are assertions of the graph, which torch notes as
        guards otherwise; and which of them are of a copy alone."""
        return _DEFERRED in RUNGS[self.name], decisions.copies(self.decided)

    def __str__(self) -> str:
        return "".join([f"captured by torch.export, {self.name}", *(f"\n  {line}" for line in self.refused)])


def exported(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> tuple[ExportedProgram, Rung]:
    """The program of the first rung that takes the model; the model is left as it was.

    Raises:
        CaptureError: none does. It is the first rung's, with a note for each of the others.
    """
    import_whole(*TRACERS)
    refused: list[tuple[str, str, Exception | None]] = []
    kept: set[type] = set()
    for name, options in RUNGS.items():
        if (why := _left_out(name, refused, kept)) is not None:
            refused += [(name, why, None)] if why else []
            continue
        follows: Any = followed(model) if name == _FOLLOWED else contextlib.nullcontext(set())
        path: Any = not_exporting() if name == _NOT_EXPORTING else contextlib.nullcontext(True)
        decided: list[decisions.Decision] = []
        deferred: list[Any] = []
        asking: Any = True
        try:
            settled = _settled(model, (args, kwargs), options, kept, decided)
            noted = noting_deferred(deferred)
            with settled, noted, _obliviously(bool(refused)), caches.watched(), follows as held, path as asking:
                export = exported_below_autograd if name == _DERIVED else torch.export.export
                program = export(model, args, kwargs, dynamic_shapes=shapes, **options)
        except CaptureError:  # ours: another rung would only go round what it says
            raise
        except Exception as error:
            if asking:  # else it took the path of the rungs before
                refused.append((name, told(error), error))
            if missing_fake(error):  # which every rung needs
                break
            continue
        if not asking:
            continue
        if not (fixed := guards.truncated(program) or _state_read(program, held) or _lost(program)):
            guards.drop_needless_assertions(program, deferred, decisions.conditions(decided))
            before = tuple(f"{n} refused it: {first_line(e or text)}" for n, text, e in refused)
            return program, Rung(name, before, tuple(decided))
        refused.append((name, fixed, None))
    raise _failure(refused)


def _left_out(name: str, refused: Sequence[tuple[str, str, Exception | None]], kept: set[type]) -> str | None:
    """Why a rung is not tried, "" where there is nothing in it for the model; None if it is tried."""
    if name == _FOLLOWED and not asks_for_data(refused[-1][2]):
        return ""
    if name == _DERIVED and not _derives(refused):
        return ""
    if RUNGS[name]["strict"] and kept:
        names = ", ".join(sorted(c.__qualname__ for c in kept))
        return f"not tried, for it would trace through {names} in place of its op"
    if RUNGS[name]["strict"] and _derives(refused):
        return "not tried, for torch's tracer of byte code does not leave a transform that fails"
    return None


def _lost(program: ExportedProgram) -> str:
    """What torch.export made of an input that it did not know again inside of a transform: a constant without data."""
    lost = [n for n, t in program.constants.items() if isinstance(t, torch.Tensor) and _is_wrapped(t)]
    return f"{_WRAPPED}: {', '.join(lost)}" if lost and not _is_fake(program) else ""


def _is_wrapped(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor)


def _is_fake(program: ExportedProgram) -> bool:
    """True of a model that was made without weights, whose constants have no data either."""
    return any(isinstance(t, FakeTensor) for t in program.state_dict.values())


def _derives(refused: Sequence[tuple[str, str, Exception | None]]) -> bool:
    """True if a rung before ended in a transform of torch.func, whose wrapped tensors its graph cannot hold."""
    return any(text.startswith(_WRAPPED) or (error is not None and in_transform(error)) for _, text, error in refused)


def _state_read(program: ExportedProgram, held: set[str]) -> str:
    written = ", ".join(sorted(held & written_buffers(program)))
    return f"the model reads {written} as a Python number and writes to it: each call has another" if written else ""


def _failure(refused: Sequence[tuple[str, str, Exception | None]]) -> CaptureError:
    """The reason that matters; a traceback shows those of the other rungs as notes."""
    # a question about data that the followed numbers answer is not what stands in the way: what comes after it is
    main = next((r for r in refused if r[0] in (_FOLLOWED, _DERIVED)), refused[0])
    failed = CaptureError(main[1])
    for n, text, e in refused:
        if n != main[0]:
            note(failed, f"{n}: {first_line(e or text)}")
    failed.__cause__ = main[2]
    return failed


@contextlib.contextmanager
def _settled(
    model: torch.nn.Module, arguments: Any, options: Any, kept: set[type], decided: list[decisions.Decision]
) -> Iterator[None]:
    strict = options["strict"]
    functions = contextlib.nullcontext() if strict else autograd_functions.kept(kept)
    sizes: Any = contextlib.nullcontext() if strict else around_model()
    rules: Any = unvalidated_distributions(), fake_rules.dynamic(), conversions.left_out()
    notes: Any = decisions.recorded(decided), located(is_own)
    asserts: Any = contextlib.nullcontext() if strict else assertions.kept()
    derivatives: Any = contextlib.nullcontext() if strict else gradients.told_of()
    counts: Any = contextlib.nullcontext() if strict else counters.told_of(model)
    with contextlib.ExitStack() as stack:
        contexts = (
            functions,
            sizes,
            *rules,
            *notes,
            asserts,
            derivatives,
            _unmarked(arguments),
            unchanged(model),
            counts,
        )
        for context in contexts:
            stack.enter_context(context)
        yield


@contextlib.contextmanager
def _obliviously(again: bool) -> Iterator[None]:
    """From the second rung on torch's kernels ask for no sizes that they can do without, as in torch.onnx.

    What torch logs and prints of a rung that fails, the graph so far, is not for who gets the next one's program.
    """
    with quiet_export(), size_oblivious() if again else contextlib.nullcontext(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _OWN_WEIGHTS, UserWarning)
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
def unchanged(model: torch.nn.Module) -> Iterator[None]:
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
