"""The driver. One rule: the handler if there is one; else the node's body; else UnsupportedOpsError, all at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ir.collector import held_back
from ir.dims import Dim
from ir.errors import ExportError, MissingOp, RefusedError, UnsupportedOpsError
from ir.geometry import broadcast, differ, stretches
from ir.graph import Body, Graph, Node, SymbolSource, Value
from ir.handler_errors import for_a_size, handler_error, other_sizes, place_in_body
from ir.helper import OpHelper, Refusal, refusal_text
from ir.locks import one_at_a_time
from ir.ops import OF_TORCH, is_random
from ir.passes.promote import mixes, promote
from ir.preparation import prepared, takes_packed
from ir.progress import stage
from ir.registry import Handler, Registry
from ir.target import Target
from ir.words import near_ops


def _call(h: OpHelper[Any], graph: Graph, operands: Sequence[Any]) -> list[Any]:
    """A graph kept as a call by name; in place where it needs to know what stands around it."""
    try:
        return list(h.call(Body(graph, graph.name), operands))
    except RefusedError:
        with h.driver.inside(h.node.origin.path):
            return h.inline(graph, operands)


# The core's own ops, which every helper can say.
CORE: Mapping[str, Callable[..., Any]] = {
    "ir::cast": lambda h, self, dtype: h.cast(self, dtype),
    "ir::scalar": lambda h, value, dtype: h.scalar(value, dtype),
    "ir::call": _call,
    "ir::item": lambda h, self, symbol: None,  # the symbol's readers look up where its value is
    "ir::require": lambda h, self, condition, message: self,  # where a target has no handler for it
    # copies that only change strides, which a target without strides has no word for
    "aten::clone": lambda h, self, memory_format: self,
    "aten::contiguous": lambda h, self, memory_format: self,
    "aten::resolve_conj": lambda h, self: self,
}


class Driver:
    """Lowers one graph through one helper."""

    def __init__(self, graph: Graph, target: Target, registry: Registry) -> None:
        self.graph = graph
        self.target = target
        self.registry = registry
        self.helper: OpHelper[Any] = target.helper(graph)
        self.helper.driver = self
        self.env: dict[Value, Any] = {}
        self._bodies: dict[Graph, Body] = {}
        self._handlers: dict[str, Handler | None] = {}
        self._open: list[str] = []
        self._promotes = promote in target.passes
        self.scopes: list[Graph] = []
        self._callers: list[Node] = []
        self._root: Node | None = None  # of a function that is lowered apart, the node that calls it first
        self.path: tuple[str, ...] = ()  # the modules around what is lowered, beside those that its origin tells

    def watch(self, seen: Callable[[Node, str], None]) -> None:
        """Tell of each op of the target that is emitted, with the node of the graph that it is for."""
        emit, call = self.helper.emit, self.helper.call

        def note(name: str) -> None:
            if self._root or self._callers or hasattr(self.helper, "node"):  # a program of constants alone has none
                seen(self._root or self.root_node, name)

        def noting(op: Any, *inputs: Any, **attributes: Any) -> Any:
            note(_name(op))
            return emit(op, *inputs, **attributes)

        def calling(body: Body, inputs: Sequence[Any]) -> Any:
            note(str(body.name))
            return call(body, inputs)

        self.helper.emit, self.helper.call = noting, calling  # type: ignore[method-assign]

    def run(self) -> Any:
        """The artifact.

        Raises:
            UnsupportedOpsError: before any work, with every op that has neither a handler nor a body.
            RefusedError: an op is known, an argument of it is not.
        """
        missing = self.missing()
        if missing:
            raise UnsupportedOpsError(self.target.name, missing)
        self.scopes.append(self.graph)
        for value in self.graph.inputs:
            self.env[value] = self.helper.input(value)
        results = self._nodes(self.graph)
        return self.helper.finish(results)

    @property
    def root_node(self) -> Node:
        """The node of the graph that is being lowered, whatever body of it is open."""
        return self._callers[0] if self._callers else self.helper.node

    @contextlib.contextmanager
    def isolated(self) -> Iterator[None]:
        """Lower what sees nothing of the graph around it: the body of a function."""
        outer = self.env, self.scopes, self._callers, self.path, self.helper.node, self._root
        root = self._root or self.root_node
        self.env, self.scopes, self._callers, self.path, self._root = {}, [], [], (), root
        try:
            yield
        finally:
            self.env, self.scopes, self._callers, self.path, self.helper.node, self._root = outer

    @contextlib.contextmanager
    def inside(self, path: tuple[str, ...]) -> Iterator[None]:
        """Lower what belongs to a module whose call is not kept."""
        outer, self.path = self.path, self.path + path
        try:
            yield
        finally:
            self.path = outer

    # -- what is missing -------------------------------------------------------------------------------------------

    def handler(self, node: Node) -> Handler | None:
        """The handler that serves a node, looked up once for each overload."""
        key = node.overload
        if node.packed and not takes_packed(node, self.target, self.registry):
            return None
        if key not in self._handlers:
            found = self.registry.lookup(node.op, key, self.target.version)
            if found is None and node.op in CORE:
                found = Handler(node.op, CORE[node.op], 0, "builtin", __name__)
            self._handlers[key] = found
        return self._handlers[key]

    def body(self, node: Node) -> Body | None:
        """The node's body with the target's passes applied, or None."""
        if node.packed or not self.graph.context:
            return None
        body: Body | None = self.graph.context.body(node)
        if body is None:
            return None
        if body.graph not in self._bodies:
            graph = body.graph.replace(context=self.graph.context)
            graph = prepared(graph, self.target, self.registry, self.graph.context)
            self._bodies[body.graph] = Body(graph, body.name)
        return self._bodies[body.graph]

    def missing(self, graph: Graph | None = None) -> list[MissingOp]:
        """Every op of the graph, or of a part of it, that has neither a handler nor a body, all the way down."""
        found: dict[str, list[Node]] = {}
        needs: dict[str, dict[str, None]] = {}
        self._collect(graph or self.graph, found, needs, set())
        return [self._report(nodes, tuple(needs[op])) for op, nodes in found.items()]

    def _collect(
        self,
        graph: Graph,
        found: dict[str, list[Node]],
        needs: dict[str, dict[str, None]],
        seen: set[Graph],
        open: tuple[Node, ...] = (),
    ) -> None:
        """`open` are the nodes whose bodies lead here, the graph's own node first."""
        if graph in seen:
            return
        seen.add(graph)
        for node in graph.nodes:
            for inner in node.graphs:
                self._collect(inner, found, needs, seen, open)
            if self.handler(node) is not None:
                continue
            circle = any(n.overload == node.overload for n in open)  # as of prims::div and aten::div
            body = None if circle else self.body(node)
            if body is not None:
                self._collect(body.graph, found, needs, seen, (*open, node))
                continue
            outer = (*open, node)[0]
            found.setdefault(outer.overload, []).append(outer)
            needs.setdefault(outer.overload, {})
            lacking = next((n for n in reversed(open) if n.op.startswith("aten::")), node) if circle else node
            if lacking is not outer:
                needs[outer.overload][lacking.op] = None

    def _report(self, nodes: list[Node], needs: tuple[str, ...]) -> MissingOp:
        node, context = nodes[0], self.graph.context
        known = {op.split(".")[0] for op in self.registry.ops()}
        nearest = near_ops(node.op, known)
        skeleton = context.skeleton(node, self.target.name) if context else ""
        why = context.body_error(node) if context else ""
        count, real_only = len({id(n) for n in nodes}), bool(node.packed) and node.op in known
        where = str(node.origin)
        return MissingOp(node.overload, where, nearest, skeleton, needs, why, count, real_only, is_random(node))

    # -- lowering --------------------------------------------------------------------------------------------------

    def inline(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """Lower a body or sub-graph with these values for its inputs; its results in order."""
        self.env.update(zip(graph.inputs, inputs, strict=True))
        outer = self.helper.node
        results = self._nodes(graph)
        self.helper.node = outer
        return list(results.values())

    def _nodes(self, graph: Graph) -> dict[str, Any]:
        self.scopes.append(graph)
        for value, weight in graph.weights.items():
            self.env[value] = self.helper.weight(value, weight)
        for node in graph.nodes:
            self._node(node)
        results = {name: self._value(v) for name, v in graph.results.items()}
        self.scopes.pop()
        return results

    def _node(self, node: Node) -> None:
        self.helper.node = node
        handler = self.handler(node)
        if handler is None or self._mixes(node, handler):
            results, handler = self._expand(node, None), None
        else:
            try:
                results = handler.fn(self.helper, **self._arguments(handler, node))
            except Refusal as refusal:
                self.helper.node = node
                results, handler = self._expand(node, refusal), None
            except (ExportError, KeyboardInterrupt):
                raise
            except BaseException as error:
                if (of_size := for_a_size(self.target.name, handler, node, error)) is None:
                    raise handler_error(handler, node, error) from error
                self.helper.node = node
                results, handler = self._expand(node, of_size), None
        self._bind(node, results, handler)

    def _mixes(self, node: Node, handler: Handler) -> bool:
        """True if a backend's own handler would see operands of several element types, and a body has the casts."""
        context = self.graph.context
        if handler.layer != "builtin" or context is None or not self._promotes:
            return False
        return node.overload not in self._open[-8:] and mixes(node, context) and self.body(node) is not None

    def _arguments(self, handler: Handler, node: Node) -> dict[str, Any]:
        bound: dict[str, Any] = {}
        for name, arg in node.args.items():
            parameter = handler.parameter(name)
            if parameter is not None:
                bound[parameter.name] = self.resolve(arg)
            elif handler.takes_all:
                bound[name] = self.resolve(arg)
            elif name not in node.defaults or node.defaults[name] != arg:
                raise RefusedError(
                    refusal_text(
                        self.target.name,
                        node,
                        f"argument {name}={arg} is not known to its handler at {handler.source}; "
                        f"declare the parameter {name!r} there",
                    )
                )
        return bound

    def resolve(self, arg: Any) -> Any:
        """An argument as a handler sees it: values of the target, lists, plain Python."""
        if isinstance(arg, Value):
            return self._value(arg)
        if isinstance(arg, tuple):
            return [self.resolve(a) for a in arg]
        return arg

    def _value(self, value: Value) -> Any:
        try:
            return self.env[value]
        except KeyError:
            node = self.helper.node
            reason = f"it reads %{value.name}, a result that the handler which made it left out"
            raise RefusedError(refusal_text(self.target.name, node, reason)) from None

    def _is_read(self, value: Value) -> bool:
        graph = self.scopes[-1]
        return value in graph.uses or value in graph.results.values()

    def symbol(self, name: str) -> tuple[Any, SymbolSource]:
        """The target's value that a symbol can be read from, and how: `x` before `x[1:]`, then the innermost graph.

        Raises:
            RefusedError: nothing computed so far carries the symbol.
        """
        known = [s for g in reversed(self.scopes) if (s := g.sources.get(name)) is not None and s.value in self.env]
        if known:
            source = min(known, key=lambda s: s.offset != 0)
            return self.env[source.value], source
        reason = f"the size {name} is carried by no tensor that is known at this point"
        raise RefusedError(refusal_text(self.target.name, self.helper.node, reason))

    def _expand(self, node: Node, refusal: Refusal | None) -> Any:
        body = None if node.overload in self._open[-8:] else self.body(node)
        if body is None:
            why = self.graph.context.body_error(node) if self.graph.context else ""
            if refusal is not None and why and not is_random(node):  # its decomposition draws as well
                raise RefusedError(f"{refusal}\n  and its decomposition does not help: {why}")
            raise refusal or RefusedError(refusal_text(self.target.name, node, "it has neither handler nor body"))
        inputs = [self.env[v] for v in node.inputs]
        self._open.append(node.overload)
        self._callers.append(node)
        try:
            if body.name is not None:
                return list(self.helper.call(body, inputs))
            return self.inline(body.graph, inputs)
        except ExportError as inner:
            place_in_body(inner, node)
            if refusal is None or not isinstance(inner, RefusedError):
                raise
            reason = str(refusal).partition("\n")[0].partition(": ")[2].partition("; ")[0]
            if reason in str(inner):  # once more
                raise refusal from inner
            raise RefusedError(f"{refusal}\n  and its decomposition does not help: {inner}") from inner
        finally:
            self._open.pop()
            self._callers.pop()

    def _bind(self, node: Node, results: Any, handler: Handler | None) -> None:
        """Check what a handler or a body gave against what torch says, and keep it."""
        if not isinstance(results, (list, tuple)):
            results = () if results is None and not node.outputs else (results,)
        if len(results) != len(node.outputs):
            raise self._defect(node, handler, f"returned {len(results)} results for {len(node.outputs)}")
        own = handler is None or handler.layer == "builtin"
        for value, result in zip(node.outputs, results, strict=True):
            if result is None and not own and self._is_read(value):
                raise self._defect(node, handler, f"returned None for %{value.name}: return what h.emit gave")
            if result is None:
                continue  # a handler may leave out what nothing reads; `resolve` tells where something does
            if not self.helper.is_value(result):
                hint = "; h.emit(..., type=...) gives one result of several" if isinstance(result, list) else ""
                what = f"which is no value of {self.target.name!r} as h.emit and h.const make them{hint}"
                raise self._defect(node, handler, f"returned {result!r:.60} for %{value.name}, {what}")
            shape = result.type.shape if own else self.helper.told_shape(result, [self.env[v] for v in node.inputs])
            if shape is not None and (differ if own else other_sizes)(shape, value.type.shape):  # None: not known
                if not self._is_read(value):
                    continue  # torch's decomposition of attention gives its log-sums another shape than its kernel
                operands = [v.type.shape for v in node.inputs]
                if shape == broadcast(*operands) and stretches(operands, value.type.shape):
                    why = f"it takes {' and '.join(map(_shape, operands))} together, as at the sizes of the example"
                    why += " alone; capture the model with these sizes fixed, or cut the operands to one size"
                    raise RefusedError(refusal_text(self.target.name, node, why))
                what = f"has the shape {_shape(value.type.shape)} in torch"
                raise self._defect(node, handler, f"returned the shape {_shape(shape)} for %{value.name}, which {what}")
            if result.type.dtype is not value.type.dtype:
                what = f"which is {value.type.dtype} in torch: cast it"
                raise self._defect(node, handler, f"returned {result.type.dtype} for %{value.name}, {what}")
            self.env[value] = self.helper.bind(result, value)

    def _defect(self, node: Node, handler: Handler | None, what: str) -> ExportError:
        """A result that torch would not give: a mistake in the handler, or in the decomposition where there is none."""
        if handler is None:
            by_torch = node.op.startswith((*OF_TORCH, "ir::", "higher_order::"))
            made_by = "decomposition" if by_torch else "function or body, which has to agree with its fake,"
            return RefusedError(refusal_text(self.target.name, node, f"its {made_by} {what}"))
        return ExportError(f"the handler of {node.overload} at {handler.source} {what}\n  at {node.origin}")


def _shape(shape: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _name(op: Any) -> str:
    """A target's op in words: names, functions of Python, objects that have a name."""
    names = (op, *(getattr(op, n, None) for n in ("__name__", "name")))
    return next((n for n in names if isinstance(n, str)), str(op))


@one_at_a_time
@held_back
def lower(
    graph: Graph, target: Target, registry: Registry | None = None, watch: Callable[[Node, str], None] | None = None
) -> Any:
    """Graph -> artifact: the target's passes, then every node through its handler or its body.

    `registry` holds the handlers, by default the target's own. `watch` is told of each op of the target as it is
    emitted, with the node of `graph` (after the passes of `target`) that it is for.

    Raises:
        UnsupportedOpsError, RefusedError: see ir.errors; of missing ops all at once.

    Examples:
        >>> type(ir.lower(graph, program.target)).__name__
        'Model'
    """
    registry = registry or target.registry
    with stage("passes"):
        ready = prepared(graph, target, registry, graph.context)
    with stage("lower"):
        driver = Driver(ready, target, registry)
        if watch is not None:
            driver.watch(watch)
        return driver.run()
