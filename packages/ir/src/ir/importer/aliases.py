"""Which tensors of a program share memory: observed, by running its own ops once under fake tensors.

Fake tensors keep storages, so each result tells what memory it lies in and where. Nothing is traced. An op that cannot
return memory of its arguments is not run where torch.export has noted what it returns.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.errors import CaptureError
from ir.importer import fake_rules
from ir.importer.fx_ops import WRAPPERS
from ir.importer.origins import origin_of
from ir.importer.private_writes import keeps_type
from ir.importer.schema import Twin, op_schema
from ir.importer.symbols import is_from_data
from ir.importer.torch_api import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    enable_python_dispatcher,
    expression,
    pytree,
    schema_of,
    storage_key,
)
from ir.ops import may_alias


@dataclass(frozen=True, eq=False)
class Seen:
    """A tensor at one moment. `tensor` is the fake one, whose identity tells names of one tensor from views of it."""

    tensor: Tensor
    owner: Any  # the storage, or what stands for it: `memory` names it for as long as it lives
    memory: int
    dtype: torch.dtype
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    flags: tuple[bool, bool]  # is_conj, is_neg

    @property
    def size(self) -> Any:
        """The number of elements that the memory has room for."""
        return self.owner.nbytes() // self.dtype.itemsize


@dataclass
class Outcome:
    """What a node did.

    Attributes:
        result: nested as the op nests it, None in the place of what is no tensor.
        written: the tensors that it writes to, as they are behind it.
        computed: what the op's functional twin returns.
        inner: what the nodes of a wrapped sub-graph did.
        value: what the node returns, where it is not what torch.export noted: an argument has other sizes by then.
    """

    result: Any = None
    written: list[Seen] = field(default_factory=list)
    computed: list[Seen] = field(default_factory=list)
    inner: Mapping[FxNode, Outcome] | None = None
    value: Any = None

    @property
    def fresh(self) -> list[Seen]:
        """The results of an op that writes which are not what it writes to."""
        written = {id(s.tensor) for s in self.written}
        return [s for s in seen_in(self.result) if id(s.tensor) not in written]


def seen_in(result: Any) -> Iterator[Seen]:
    """The tensors of a nested result."""
    if isinstance(result, Seen):
        yield result
    elif isinstance(result, (tuple, list)):
        for r in result:
            yield from seen_in(r)


def observe(
    graph: FxGraph, owner: torch.nn.Module | None, weights: Mapping[FxNode, Tensor] | None = None
) -> Mapping[FxNode, Outcome]:
    """What each node of the graph did, sub-graphs that are only wrapped included.

    Args:
        graph: its placeholders' `meta["val"]` are fake tensors, and what else a call was given.
        owner: the module that its get_attr nodes refer to.
        weights: the model's own tensors behind placeholders; those in one storage share a fake one.
    """
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    fakes = [n.meta.get("val") for n in placeholders]
    mode = next((f.fake_mode for f in fakes if isinstance(f, FakeTensor)), None) or FakeTensorMode()
    observer = _Observer(mode, any(op_schema(n.target).moves for n in _calls(graph, owner)))
    with running(mode):
        env = dict(zip(placeholders, map(observer.fresh, fakes), strict=True))
        _share(env, weights or {})
        return observer.run(graph, owner, env)[1]


def _calls(graph: FxGraph, owner: torch.nn.Module | None) -> Iterator[FxNode]:
    """The calls of operators in the graph and in its sub-graphs."""
    inner = owner.modules() if owner is not None else ()
    for g in (graph, *(m.graph for m in inner if isinstance(m, torch.fx.GraphModule))):
        yield from (n for n in g.nodes if isinstance(n.target, OpOverload))


@contextlib.contextmanager
def running(mode: FakeTensorMode) -> Iterator[None]:
    """Run ops on fake tensors inside of the block; what they assume of sizes was noted when the program was made."""
    with contextlib.ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        for context in (fake_rules.dynamic(), torch.no_grad(), mode):
            stack.enter_context(context)
        yield


def _share(env: dict[FxNode, Any], weights: Mapping[FxNode, Tensor]) -> None:
    """Lay weights of one storage into one fake storage."""
    groups: dict[int, list[FxNode]] = {}
    for node, real in weights.items():
        if real.layout is torch.strided and isinstance(env[node], Tensor):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # a subclass without memory of its own
                groups.setdefault(storage_key(real), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            size = weights[nodes[0]].untyped_storage().nbytes()
            storage = torch.empty(size, dtype=torch.uint8).untyped_storage()
            for node in nodes:
                real = weights[node]
                place = real.storage_offset(), tuple(real.shape), real.stride()
                env[node] = torch.empty(0, dtype=real.dtype).set_(storage, *place)


class _Observer:
    def __init__(self, mode: FakeTensorMode, moves: bool) -> None:
        self.mode = mode
        self.twins: dict[tuple[Any, ...], list[Seen]] = {}  # by operator and arguments
        self.moves = moves  # whether some op changes a tensor's sizes or strides in place
        self.ruled = fake_rules.rules().keys()

    def run(self, graph: FxGraph, owner: Any, env: dict[FxNode, Any]) -> tuple[Any, Mapping[FxNode, Outcome]]:
        """What the graph returns, and what its nodes did."""
        done = {n: Outcome(self._seen(v)) for n, v in env.items()}
        result: Any = ()
        for node in graph.nodes:
            if node.op == "call_function":
                done[node] = Outcome()
                env[node] = self._call(node, env, done[node])
                done[node].result = self._seen(env[node])
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(owner)
                env[node] = self.mode.from_tensor(value) if isinstance(value, Tensor) else value
                done[node] = Outcome(self._seen(env[node]))
            elif node.op == "output":
                result = self._given(node.args[0], env)
                done[node] = Outcome(self._seen(result))
        return result, done

    def _given(self, arg: Any, env: Mapping[FxNode, Any]) -> Any:
        return torch.fx.node.map_arg(arg, lambda n: env[n])

    def _call(self, node: FxNode, env: dict[FxNode, Any], outcome: Outcome) -> Any:
        target: Any = node.target
        noted = node.meta.get("val")
        if isinstance(target, OpOverload):
            alone = not may_alias(target)
            known = noted is not None and (alone or "unbacked_bindings" in node.meta)
            if self.moves and _are_moved(node, env) and not _is_counted(node):
                made = self._operator(node, env, outcome)
                outcome.value = self.fresh(made)  # as it is now: later ops may change its sizes too
                return made
            if known or not (noted is None or _holds_tensor(noted)):
                return self.fresh(_apart(noted, [env[n] for n in node.all_input_nodes]) if alone else noted)
            return self._operator(node, env, outcome)
        if target is operator.getitem:
            return env[node.args[0]][node.args[1]]  # type: ignore[index]
        if isinstance(target, HigherOrderOperator):
            at = WRAPPERS.get(target.name())
            if at is None:
                return self.fresh(noted)
            module = env[node.args[at[0]]]  # type: ignore[index]
            operands = self._given(node.args[at[1] :], env)
            inner = dict(zip([n for n in module.graph.nodes if n.op == "placeholder"], operands, strict=True))
            result, outcome.inner = self.run(module.graph, module, inner)
            return result
        return noted

    def _operator(self, node: FxNode, env: dict[FxNode, Any], outcome: Outcome) -> Any:
        target: Any = node.target
        schema = op_schema(target)
        args, kwargs = self._given((node.args, dict(node.kwargs)), env)
        noted = node.meta.get("val")
        if schema.views and _by_data(noted, (args, kwargs)) and not _are_moved(node, env):
            # fake tensors hold no data: a run fails, or counts by new symbols, which what reads the view has not
            with contextlib.suppress(Exception):  # of memory that the view does not fit into for sure
                return _placed(noted, schema.bind(args, kwargs)[schema.views[0]])
        try:
            if not schema.writes:  # an assertion returns nothing
                return self._of_rule(target, args, kwargs) if schema_of(target).returns else None
            bound = schema.bind(args, kwargs)
            if schema.functional is not None and not schema.moves:
                same = schema.returns_self and not self.moves and keeps_type(node)
                first = bound[schema.writes[0]]
                outcome.computed = [_look(first)] if same else self._computed(schema.functional, bound)
            result = bound[schema.writes[0]] if schema.returns_self and not schema.moves else target(*args, **kwargs)
        except Exception as error:
            raise CaptureError(
                f"{target} cannot be run on fake tensors, which tell what shares memory with what: {error}\n"
                f"  at {origin_of(node)}"
            ) from error
        written = pytree.tree_leaves([bound[name] for name in schema.writes])
        outcome.written = [self._seen(t) for t in written if isinstance(t, Tensor)]
        return result

    def _of_rule(self, target: OpOverload, args: Any, kwargs: Any) -> Any:
        """What the op returns. The rule of a composite op (tensor_split) is asked by the Python dispatcher alone."""
        with enable_python_dispatcher() if target in self.ruled else contextlib.nullcontext():
            return target(*args, **kwargs)

    def _computed(self, twin: Twin, bound: Mapping[str, Any]) -> list[Seen]:
        """What the functional twin returns; layers of a model that are alike are asked once."""
        given = twin.bind(bound, None)
        key = (twin.target, *map(_signature, given.values()))
        if key not in self.twins:
            formals = schema_of(twin.target).arguments
            positional = [given.pop(a.name) for a in formals if not a.kwarg_only]
            needed = {a.name for a in formals if a.kwarg_only and not a.has_default_value()}
            with enable_python_dispatcher():  # some of torch's meta kernels take symbolic sizes only there
                made = twin.target(*positional, **{k: v for k, v in given.items() if v is not None or k in needed})
            self.twins[key] = list(seen_in(self._seen(made)))
        return self.twins[key]

    def fresh(self, noted: Any) -> Any:
        """What torch.export noted of memory that no argument has, as tensors that later ops may change."""
        return pytree.tree_map_only(Tensor, Tensor.detach, noted) if self.moves else noted

    def _seen(self, value: Any) -> Any:
        """The tensors of a result, None in the place of all else."""
        if isinstance(value, (list, tuple)):
            return tuple(map(self._seen, value))
        return _look(value) if isinstance(value, Tensor) else None


def _signature(arg: Any) -> Any:
    """What of an argument decides the types and strides of a result."""
    if isinstance(arg, (list, tuple)):
        return tuple(map(_signature, arg))
    if isinstance(arg, Tensor):
        seen = _look(arg)
        return seen.dtype, seen.flags, arg.layout, *map(str, seen.shape), *map(str, seen.strides)
    return type(arg), str(arg)


def _look(tensor: Tensor) -> Seen:
    shape, flags = tuple(tensor.shape), (tensor.is_conj(), tensor.is_neg())
    try:
        storage = tensor.untyped_storage()
        place = tensor.stride(), tensor.storage_offset()
    except (NotImplementedError, RuntimeError):  # sparse, or traced under vmap: it shows no memory
        return Seen(tensor, tensor, id(tensor), tensor.dtype, shape, (), 0, flags)
    return Seen(tensor, storage, storage_key(tensor), tensor.dtype, shape, *place, flags)


def _apart(made: Any, given: Any) -> Any:
    """What an op made, in memory of its own: fake kernels may return their argument where real ones do not."""
    owners = {_storage(t) for t in pytree.tree_leaves(given) if isinstance(t, Tensor)} - {None}

    def own(t: Tensor) -> Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) if _storage(t) in owners else t

    return pytree.tree_map_only(Tensor, own, made) if owners else made


def _is_counted(node: FxNode) -> bool:
    """True of a node whose sizes data decides, by symbols that torch noted at it; of a file, that it shows first."""
    known = "unbacked_bindings" in node.meta
    return known or (
        not may_alias(node.target) and _by_data(node.meta.get("val"), [n.meta.get("val") for n in node.all_input_nodes])
    )


def _by_data(made: Any, given: Any) -> bool:
    """True if a size of what an op made is a number that it read out of a tensor."""

    def symbols(x: Any) -> set[Any]:
        sizes = [n for t in pytree.tree_leaves(x) if isinstance(t, Tensor) for n in t.shape]
        return {s for n in sizes if isinstance(n, torch.SymInt) for s in expression(n).free_symbols}

    return any(map(is_from_data, symbols(made) - symbols(given)))


def _placed(made: Any, base: Tensor) -> Any:
    """What a file has noted of views, in the memory of what they are views of."""

    def view(t: Tensor) -> Tensor:
        return base.as_strided(t.shape, t.stride(), t.storage_offset())

    return pytree.tree_map_only(Tensor, view, made)


def _storage(tensor: Tensor) -> int | None:
    """What names the tensor's memory; None where it shows none."""
    try:
        return storage_key(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, or traced under vmap
        return None


def _are_moved(node: FxNode, env: Mapping[FxNode, Any]) -> bool:
    """True if an argument has other sizes than torch.export noted when it was made.

    torch.export traces `dropout(x, training=False)` as a tensor of its own; in the program it is x, and what
    `x.unsqueeze_(0)` does is seen in it.
    """
    pairs = ((n.meta.get("val"), env[n]) for n in node.all_input_nodes)
    return any(
        isinstance(noted, Tensor) and isinstance(now, Tensor) and _sizes(noted) != _sizes(now) for noted, now in pairs
    )


def _sizes(tensor: Tensor) -> tuple[str, ...]:
    """In letters: symbolic sizes that are compared guard."""
    return tuple(map(str, tensor.shape))


def _holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))
