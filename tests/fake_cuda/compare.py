"""One program on a GPU that is not there, beside torch's own module of it, moved there by torch itself."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

import ir
from eager_backend import Eager
from eager_backend.building.steps import Slot
from eager_backend.inspection import watch
from eager_backend.passes import PASSES
from ir.importer.torch_api import disable_current_modes

from .mode import GPU, Account, Answers, Event, NoAnswer, gpu, recording

WAITS = ("reads content", "copies between host and GPU")


@dataclass(frozen=True)
class Found:
    """What was seen of a program: values on the wrong device, and what makes the host wait where torch does not."""

    values: int  # tensors that were looked at
    compared: int  # of them those that torch's own program has by the same name
    misplaced: tuple[str, ...]
    waits: tuple[str, ...]
    torch_waits: int


def compare(
    graph: ir.Graph,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    handlers: dict[str, Any] | None = None,
    optimize: Sequence[Any] = (False, tuple(PASSES)),
) -> list[Found]:
    """The programs of a graph that was captured from a model, one for each way of `optimize`, with its example inputs.

    Raises:
        ReferenceFails: torch's own module does not run so.
    """
    flat = graph.structure.flatten(args, kwargs)  # type: ignore[union-attr]
    places, theirs = _reference(graph, args, kwargs)

    def export(device: torch.device | str, how: Any) -> Any:
        return ir.export(graph, target=Eager(device=device, optimize=how), handlers=handlers).artifact

    return [_ours(partial(export, how=how), flat, places, theirs) for how in optimize]


class ReferenceFails(Exception):
    """torch's own module, moved to the GPU, does not run on fake tensors; the reason is torch's."""


def _twice(run: Callable[[Account, Answers | None], Any], on_cpu: Callable[[], Any]) -> tuple[Any, Account]:
    """A run on the GPU, and once more with answers of a run on the CPU where content is asked for."""
    account = Account()
    try:
        return run(account, None), account
    except NoAnswer:
        with recording() as answers, torch.no_grad():
            on_cpu()
        account = Account()
        return run(account, answers), account


# -- torch's own -------------------------------------------------------------------------------------------------------


class _Interpreter(torch.fx.Interpreter):
    """Notes on which devices the tensors of each node lie, but for those that torch's pass leaves."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.places: dict[str, set[torch.device]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if not _left_by_the_pass(n):
            self.places[n.name] = {t.device for t in pytree.tree_leaves(result) if isinstance(t, Tensor)}
        return result


def _left_by_the_pass(node: torch.fx.Node) -> bool:
    """True where torch's pass does not look: makers of tensors that name no device, and a device by position."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", [])
    names = [a.name for a in arguments]
    if "device" not in names or "device" in node.kwargs:
        return False
    return names.index("device") < len(node.args) or not any("Tensor" in str(a.type) for a in arguments)


def _reference(graph: ir.Graph, args: Any, kwargs: Any) -> tuple[dict[str, set[torch.device]], Account]:
    program: Any = graph.context.program  # type: ignore[union-attr]

    def run(account: Account, answers: Answers | None) -> dict[str, set[torch.device]]:
        with gpu(account, answers), torch.no_grad():
            module = move_to_device_pass(_copied(program), str(GPU)).module(check_guards=False)
            given = pytree.tree_map_only(Tensor, lambda t: t.to(GPU), (args, kwargs))
            interpreter = _Interpreter(module)
            account.events.clear()
            interpreter.run(*pytree.tree_leaves(given))
        return interpreter.places

    def on_cpu() -> None:
        given, named = pytree.tree_map_only(Tensor, Tensor.clone, (args, kwargs))
        _copied(program).module(check_guards=False)(*given, **named)

    try:
        return _twice(run, on_cpu)
    except Exception as error:
        raise ReferenceFails(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error


def _copied(program: Any) -> Any:
    """The same program over the same tensors, which may be moved: torch's pass works in place."""
    other = copy.copy(program)
    other._graph_module = copy.deepcopy(program.graph_module)
    for old, new in zip(program.graph.nodes, other.graph.nodes, strict=True):
        new.name = old.name  # which copying changes where it is a word of Python
    other._state_dict, other._constants = dict(program.state_dict), dict(program.constants)
    return other


# -- ours --------------------------------------------------------------------------------------------------------------


def _ours(
    export: Callable[[Any], Any], flat: Sequence[Tensor], places: dict[str, set[torch.device]], theirs: Account
) -> Found:
    misplaced: list[str] = []
    counts = Counter[str]()

    def run(account: Account, answers: Answers | None) -> None:
        misplaced.clear()
        counts.clear()
        of_call = {k: v.copy() for k, v in (answers or {}).items()}
        with gpu(account, answers), torch.no_grad():
            program = export(GPU)  # which may run the model at other sizes, and read what it makes
            if answers is not None:
                answers.update(of_call)
            misplaced.extend(_constants(program))
            given = [t.to(GPU) for t in flat]
            steps, values = program.plan.block.steps, program.plan.values

            def hook(place: int, made: tuple[Any, ...]) -> None:
                for slot, tensor in zip(steps[place].outputs, made, strict=True):
                    if isinstance(slot, Slot) and isinstance(tensor, Tensor):
                        wanted = places.get(values[slot].name) if slot in values else None
                        counts.update(values=1, compared=bool(wanted))
                        if tensor.device not in (wanted or {GPU}):
                            misplaced.append(f"{slot.name} lies on {tensor.device}")

            called = watch.watched(program, hook)
            account.events.clear()
            for i, tensor in enumerate(called(*given)):
                if tensor.device != GPU:
                    misplaced.append(f"result {i} lies on {tensor.device}")

    def on_cpu() -> None:
        with disable_current_modes():
            program = export("cpu")
        program(*(t.clone() for t in flat))

    _, account = _twice(run, on_cpu)
    misplaced += [f"{e.op} has a tensor on the CPU" for e in _more(account, theirs, "on the CPU")]
    waits = [f"{e.op} {e.what}" for e in _more(account, theirs, *WAITS)]
    return Found(counts["values"], counts["compared"], tuple(misplaced), tuple(waits), len(theirs.of(*WAITS)))


def _constants(program: Any) -> Iterator[str]:
    """Tensors that the program's functions read and that do not lie on the GPU."""
    for name, value in program.run.__globals__.items():
        for tensor in pytree.tree_leaves(value):
            if isinstance(tensor, Tensor) and tensor.device != GPU:
                yield f"constant {name} lies on {tensor.device}"


def _more(ours: Account, theirs: Account, *kinds: str) -> list[Event]:
    """What ours does more often than torch's."""
    left = Counter(ours.of(*kinds))
    left.subtract(Counter(theirs.of(*kinds)))
    return [e for e, count in left.items() for _ in range(count) if count > 0]
