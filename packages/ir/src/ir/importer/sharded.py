"""Models whose weights are DTensors (`parallelize_module`): this process's own part of them, as torch.export takes it.

torch.export traces above autograd, where a DTensor is one tensor that it cannot write down. Below it a DTensor is an
operator on this process's piece and collectives, so the model is traced there once, and the trace is what is exported.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ir.errors import CaptureError
from ir.importer.dim_names import dynamic_axes
from ir.importer.torch_api import (
    FakeTensorMode,
    check_size,
    get_current_meta,
    holds,
    local_piece,
    make_fx,
    preserve_node_meta,
    pytree,
    shape_env,
    sharded_as,
    static_or_dynamic,
)  # fmt: skip

_MORE = (1, 2, 3, 5)  # sizes above those of the example, at which a condition may not hold


def is_sharded(model: Any) -> bool:
    """True if a weight of the model is a DTensor."""
    cls = _class()
    if cls is None or not isinstance(model, torch.nn.Module):
        return False
    return any(isinstance(t, cls) for t in (*model.parameters(), *model.buffers()))


def _class() -> Any:
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)  # who has one has imported it


@dataclass
class _Trace:
    """Operators on pieces: what was asked of sizes, where each symbol stands, how the results are nested."""

    module: Any
    asked: list[Any]
    places: dict[Any, tuple[int, int]]  # symbol -> tensor and axis
    out_spec: Any


class Piece(torch.nn.Module):
    """This process's part of a sharded model: its pieces of the weights under their names, and the trace over them.

    `conditions` are those on sizes without which the trace would be another one.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], trace: _Trace, conditions: Sequence[Any], model: torch.nn.Module
    ) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            owner: torch.nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, torch.nn.Module())
                owner = getattr(owner, part)
            owner.register_buffer(last, tensor)
        names, signature = list(tensors), inspect.signature(model.forward)

        def forward(*args: Any, **kwargs: Any) -> Any:
            held = dict(self.named_buffers(remove_duplicate=False))
            given = _tensors(signature, args, kwargs)
            sizes = {s: given[i].shape[axis] for s, (i, axis) in trace.places.items()}
            for condition in conditions:
                check_size(holds(condition, sizes), partial("this process's piece was traced for {}".format, condition))
            with preserve_node_meta():  # the nodes keep the lines and modules that the trace noted
                made = torch.fx.Interpreter(trace.module).run([held[n] for n in names], given)
            return pytree.tree_unflatten(made, trace.out_spec)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward


def _tensors(signature: inspect.Signature, args: Any, kwargs: Any) -> list[torch.Tensor]:
    given = signature.bind(*args, **kwargs).arguments
    return [t for t in pytree.tree_leaves(list(given.values())) if isinstance(t, torch.Tensor)]


def piece_of(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any) -> torch.nn.Module:
    """The part of a sharded model that this process computes; results that are DTensors are its pieces of them.

    Raises:
        CaptureError: an argument is a DTensor, or the model cannot be traced so.
    """
    cls = _class()
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if any(isinstance(leaf, cls) for leaf in leaves):
        raise CaptureError("an argument is a DTensor: give this process's piece of it, argument.to_local()")
    tracer = _Tracer(model, spec, [dynamic_axes(model, args, kwargs, shapes).get(id(t), {}) for t in leaves])
    try:
        trace = tracer.trace(leaves)
    except Exception as error:
        raise CaptureError(f"this process's piece of the sharded model cannot be traced: {error}") from error
    return Piece(tracer.pieces, trace, tracer.deciding(trace, leaves), model)


@contextlib.contextmanager
def _modules_noted(model: torch.nn.Module) -> Iterator[None]:
    """Inside, a trace notes at its nodes in which modules of the model they lie, as torch.export does."""
    stacks: list[dict[str, tuple[str, str]]] = [{}]

    def enter(path: str, module: torch.nn.Module, args: Any) -> None:
        cls = type(module)
        stacks.append(stacks[-1] | {str(id(module)): (path, f"{cls.__module__}.{cls.__qualname__}")})
        get_current_meta()["nn_module_stack"] = stacks[-1]

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        stacks.pop()
        get_current_meta()["nn_module_stack"] = stacks[-1]

    with preserve_node_meta(), contextlib.ExitStack() as hooks:
        for path, module in model.named_modules():  # around the hooks of DTensor, which have the collectives
            hooks.callback(module.register_forward_pre_hook(partial(enter, path), prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        hooks.callback(get_current_meta().pop, "nn_module_stack", None)
        yield


class _Tracer:
    def __init__(self, model: torch.nn.Module, spec: Any, dynamic: Sequence[Mapping[int, str]]) -> None:
        self.model, self.spec, self.dynamic = model, spec, dynamic
        named = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
        self.whole = dict(pair for pairs in named for pair in pairs)
        cls = _class()
        self.pieces = {n: (local_piece(t) if isinstance(t, cls) else t).detach() for n, t in self.whole.items()}
        self.signature = inspect.signature(model.forward)

    def trace(self, leaves: Sequence[Any]) -> _Trace:
        """The model on fake tensors, with a symbol for each dynamic size."""
        env = shape_env()
        mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
        fakes = [
            mode.from_tensor(t, symbolic_context=static_or_dynamic(t, axes)) if isinstance(t, torch.Tensor) else t
            for t, axes in zip(leaves, self.dynamic, strict=True)
        ]
        specs: list[Any] = []

        def run(pieces: list[torch.Tensor], _: list[torch.Tensor]) -> list[Any]:
            made = self._call(pieces, *pytree.tree_unflatten(fakes, self.spec))
            results, spec = pytree.tree_flatten(made)
            specs.append(spec)
            return [r.to_local() if isinstance(r, _class()) else r for r in results]

        inputs = _tensors(self.signature, *pytree.tree_unflatten(fakes, self.spec))
        with mode, _modules_noted(self.model):
            pieces = [mode.from_tensor(t, static_shapes=True) for t in self.pieces.values()]
            module = make_fx(
                run, tracing_mode="real", pre_dispatch=False, _allow_non_fake_inputs=True, record_stack_traces=True
            )(pieces, inputs)
        sizes: Any = ((i, axis, d) for i, t in enumerate(inputs) for axis, d in enumerate(t.shape))
        places = {d.node.expr: (i, axis) for i, axis, d in sizes if isinstance(d, torch.SymInt)}
        return _Trace(module, [g.expr for g in env.guards], places, specs[-1])

    def _call(self, pieces: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        cls = _class()
        held = {
            n: sharded_as(piece, t) if isinstance(t, cls) else piece
            for (n, t), piece in zip(self.whole.items(), pieces, strict=True)
        }
        with torch.no_grad():
            return torch.func.functional_call(self.model, held, args, kwargs)

    def deciding(self, trace: _Trace, leaves: Sequence[Any]) -> list[Any]:
        """Those of the conditions that were asked without which the trace is another one, as far as is seen.

        DTensor asks of every size whether it could be cut evenly, also of those that it does not cut.
        """
        given = _tensors(self.signature, *pytree.tree_unflatten(leaves, self.spec))
        sizes = {s: given[i].shape[axis] for s, (i, axis) in trace.places.items()}
        same: dict[tuple[int, ...], bool] = {}
        found = []
        for condition in dict.fromkeys(trace.asked):
            if condition.func.__name__ == "Equality" and all(a.is_Symbol for a in condition.args):
                continue  # the operators say so again when the trace is exported
            free = condition.free_symbols
            others = ({s: n + more if s in free else n for s, n in sizes.items()} for more in _MORE)
            other = next((o for o in others if not holds(condition, o)), None)
            if other is None:
                found.append(condition)
                continue
            key = tuple(other.values())
            if key not in same:
                same[key] = self._is_same(trace, leaves, sizes, other)
            if not same[key]:
                found.append(condition)
        return found

    def _is_same(self, trace: _Trace, leaves: Sequence[Any], sizes: Any, other: Mapping[Any, int]) -> bool:
        changed = {n: other[s] for s, n in sizes.items()}  # sizes that are equal in the example are so again
        tensors = [
            t.new_zeros([changed.get(n, n) if axis in axes else n for axis, n in enumerate(t.shape)])
            if isinstance(t, torch.Tensor)
            else t
            for t, axes in zip(leaves, self.dynamic, strict=True)
        ]
        try:
            return bool(self.trace(tensors).module.code == trace.module.code)
        except Exception:  # of whatever the model raises at these sizes
            return False
