"""Bodies: the graph that computes one node, traced for the node's own argument types and cached by signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ir.decompositions.complex import spectral as spectral  # its rules register themselves
from ir.decompositions.complex.pairs import Pair
from ir.decompositions.complex.rules import RULES
from ir.decompositions.registry import LeftToTorch, decomposition_of
from ir.dims import Expr, evaluate, symbol
from ir.errors import CaptureError, warn
from ir.graph import Body, Graph, Node, Value, leaves, map_arg
from ir.importer.autocasts import uncast
from ir.importer.fx_importer import Importer
from ir.importer.kernels import decomposition, python_kernel
from ir.importer.private_writes import writes
from ir.importer.refusals import question_about_data
from ir.importer.schema import TORCH_DTYPES, op_schema, overload_of
from ir.importer.size_arguments import Sizes
from ir.importer.symbols import Symbols
from ir.importer.torch_api import (
    FakeTensor,
    OpOverload,
    make_fx,
    pytree,
    schema_of,
    version_of,
)
from ir.importer.trace_context import SizeSpecific, TraceContext
from ir.ops import OF_TORCH, is_random
from ir.passes.checks import check, held_input
from ir.registry import names_of
from ir.types import DType, TensorType

# layouts and memory formats, which stand as text in the IR
SETTINGS = {str(x).removeprefix("torch."): x for x in (torch.strided, torch.preserve_format, torch.contiguous_format,
                                                        torch.channels_last, torch.channels_last_3d)}  # fmt: skip
BODIES: dict[str, Callable[..., Any]] = {}  # op name or overload -> the portable body its owner gave it
KERNELS: dict[str, Callable[..., Any]] = {}  # op name -> its kernel in Python, a body where it can be traced


def _told(error: Exception, node: Node) -> str:
    """The error of a trace as a reason: those of torch's own insides, `KeyError: u0`, say nothing to a reader."""
    if question := question_about_data(str(error)):
        return question[0]
    if not isinstance(error, (KeyError, IndexError, AttributeError, AssertionError)):
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    symbols = {s for v in (*node.inputs, *node.outputs) for d in v.type.shape for s in getattr(d, "symbols", ())}
    return f"torch cannot trace it for {', '.join(sorted(symbols)) or 'these arguments'}; sizes that are fixed may help"


def given_body(op: str, overload: str) -> Callable[..., Any] | None:
    """The body that somebody gave to an overload, or to its op."""
    return next((BODIES[name] for name in names_of(op, overload) if name in BODIES), None)


class Bodies:
    """The bodies of one capture's nodes."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self._cache: dict[Any, Body | None] = {}
        self._rules: dict[Any, Graph | None] = {}
        self._branches: dict[Graph, str] = {}  # what to warn of when a graph is used
        self.errors: dict[str, str] = {}  # overload -> why its body could not be traced

    def body(self, node: Node) -> Body | None:
        """The node's body: the one its owner gave, else torch's decomposition, else None.

        Warns:
            UserWarning: its code branches on sizes; once.
        """
        made = self._body(node)
        if text := self._branches.pop(made.graph, "") if made is not None else "":
            warn(text)
        return made

    @uncast
    def _body(self, node: Node) -> Body | None:
        made = node.op.startswith(("ir::", "higher_order::"))  # by the core itself, or torch's operators over graphs
        if "::" not in node.op or (made and decomposition_of(node.op, node.overload) is None):
            return None
        key = node.overload, tuple((k, map_arg(a, _signature)) for k, a in node.args.items())
        if key not in self._cache:
            self._cache[key] = None  # a body that needs itself has none
            try:
                self._cache[key] = self._make(node)
            except CaptureError:  # whoever asks next is told as well
                del self._cache[key]
                raise
        return self._cache[key]

    def draws(self, node: Node) -> bool:
        """True if the node draws random numbers, by its schema or in the body of a custom op."""
        if is_random(node) or any(self.draws(n) for g in node.graphs for n in g.nodes):
            return True
        if node.op.startswith((*OF_TORCH, "ir::", "higher_order::")):
            return False
        try:
            body = self._body(node)
        except CaptureError:  # a handler may serve it; who needs the body is told then
            return False
        return body is not None and body.graph.random

    def parts(self, node: Node) -> Graph | None:
        """The node's rule on real and imaginary parts, traced; None without a rule, or where it does not hold.

        A complex operand is two inputs of the graph; a complex result is two outputs, or one that is complex still.
        """
        fn = RULES.get(node.overload) or RULES.get(node.op)
        if fn is None:
            return None
        key = "parts", node.overload, tuple((k, map_arg(a, _signature)) for k, a in node.args.items())
        if key not in self._rules:
            try:
                self._rules[key] = self._trace(node, fn, named=False, apart=True)
            except Exception as error:
                self.errors[node.overload] = _told(error, node)
                self._rules[key] = None
        return self._rules[key]

    def _make(self, node: Node, left: bool = False) -> Body | None:
        """The body; of an op that is `left` to torch without a look at the shared decomposition."""
        given = given_body(node.op, node.overload)
        shared = None if left else decomposition_of(node.op, node.overload)
        own = given or KERNELS.get(node.op) or (None if shared else python_kernel(node))
        fn = own or shared or decomposition(node)
        if fn is None:
            return None
        try:
            graph = self._trace(node, fn, named=own is not None)
        except SizeSpecific as error:
            self.errors[node.overload] = str(error)
            return None
        except LeftToTorch:
            return self._make(node, left=True)
        except NotImplementedError as error:
            if own is not None or shared is not None:
                self.errors[node.overload] = str(error)
            return None
        except CaptureError as error:
            if own is not None or shared is not None:
                raise
            self.errors[node.overload] = str(error).partition("\n")[0]  # torch's own, which another may stand for
            return None
        except Exception as error:
            self.errors[node.overload] = _told(error, node)
            if given is not None:
                raise CaptureError(f"the body of {node.op} could not be traced: {error}\n  at {node.origin}") from error
            return None
        if own is not None and len(graph.outputs) != len(node.outputs):
            raise CaptureError(
                f"the body of {node.op} gives {len(graph.outputs)} tensors, the op has {len(node.outputs)}"
                f"{', what it writes to among them' if writes_of(node) else ''}\n  at {node.origin}"
            )
        if any(n.overload == node.overload and n.args.keys() == node.args.keys() for n in graph.nodes):
            return None
        return Body(graph, node.op if own is not None else None)

    def _trace(self, node: Node, fn: Callable[..., Any], named: bool, apart: bool = False) -> Graph:
        values = [v for x in node.inputs for v in (_halves(x) if apart else [x])]
        trace = TraceContext(self.symbols, apart=True)
        fakes: list[Any] = [trace.fake(v.type) for v in values]
        if trace.apart:
            try:
                return self._graph(node, fn, named, apart, values, trace, fakes)
            except Exception:  # as where it is broadcast
                trace = TraceContext(self.symbols)
                fakes = [trace.fake(v.type) for v in values]
        return self._graph(node, fn, named, apart, values, trace, fakes)

    def _graph(
        self, node: Node, fn: Callable[..., Any], named: bool, apart: bool, values: Sequence[Value],
        trace: TraceContext, fakes: list[Any],
    ) -> Graph:  # fmt: skip
        # Sizes in arguments come in as inputs too: the tracer knows no symbol that no tensor has for a size.
        exprs = [a for a in leaves(node.args.values()) if isinstance(a, Expr)]
        sizes = sorted({name for e in exprs if e.kind == "int" for name in e.symbols})
        fakes += [trace.size(symbol(name)) for name in sizes]

        call = _on_operands(node, _declared_writes(node, fn) if named else fn, trace, len(values), sizes, apart)
        with trace.tracing():
            traced = _traced(call, fakes)
        trace.check(traced)
        importer = Importer(trace.symbols, traced)
        placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
        names = [_argument_name(node, i) if named else f"in_{i}" for i in range(len(values))]
        inputs = tuple(Value(name, v.type) for name, v in zip(names, values, strict=True))
        importer.env |= dict(zip(placeholders, inputs, strict=False))
        importer.env |= zip(placeholders[len(values) :], map(symbol, sizes), strict=True)
        if writes(traced):
            importer.remember(traced.graph)
        results = importer.run(traced.graph)
        if any(isinstance(w.tensor, FakeTensor) or w.tensor.is_meta for w in importer.weights.values()):
            raise NotImplementedError(f"the kernel of {node.op} makes its result out of sight of the tracer")
        random = any(self.draws(n) for n in importer.nodes)
        nodes = importer.nodes if random else _read(importer.nodes, results)
        outputs = tuple(f"out_{i}" for i in range(len(results)))
        graph = Graph(inputs, tuple(nodes), tuple(results), outputs, importer.weights, random=random,
                      name=node.op.replace("::", "_"))  # fmt: skip
        given = [v.type for v in values]
        return self._held(graph, node, trace.conditions(lambda at: _alike(call, traced, given, sizes, at)))

    def _held(self, graph: Graph, node: Node, conditions: Mapping[Expr, str]) -> Graph:
        """The graph of a function, which refuses the sizes at which its code branches to another side.

        Raises:
            SizeSpecific: no operand can carry that.
        """
        if not conditions:
            return graph
        text = f"the function of {node.op} was traced where {{}} ({{}})"
        checks = [check(c, text.format(c, place), node.origin) for c, place in conditions.items()]
        held = held_input(graph, checks)
        if held is graph:
            raise SizeSpecific(f"it holds only where {' and '.join(map(str, conditions))}")
        lines = "".join(f"\n  {c}  ({place})" for c, place in conditions.items())
        what = f"the function of {node.op} branches on dynamic sizes"
        self._branches[held] = f"{what}; the graph is right only where{lines}"
        return held


def _alike(
    fn: Callable[..., Any], traced: torch.fx.GraphModule, types: Sequence[TensorType], sizes: Sequence[str],
    at: Mapping[str, int],
) -> bool:  # fmt: skip
    """Whether a function and its trace give the same results at these sizes, of numbers at random."""
    made = torch.Generator().manual_seed(0)

    def drawn(t: TensorType) -> torch.Tensor:
        shape = [int(evaluate(d, at)) for d in t.shape]
        return (torch.rand(shape, generator=made) * 4 - 1).to(TORCH_DTYPES[t.dtype])

    try:
        given = [*(drawn(t) for t in types), *(at[name] for name in sizes)]
        with torch.no_grad():
            expected, found = (
                list(f(*pytree.tree_map_only(torch.Tensor, torch.clone, given))) for f in (fn, traced.forward)
            )
    except Exception:  # of any kind, as of indices beyond an end
        return False
    pairs = zip(expected, found, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in pairs)


def _on_operands(
    node: Node, fn: Callable[..., Any], trace: TraceContext, count: int, sizes: Sequence[str], apart: bool
) -> Callable[..., list[torch.Tensor]]:
    """`fn` as a function of the node's operands, `count` tensors, and of the sizes that its arguments have."""

    def call(*inputs: Any) -> Any:
        given = iter(inputs[:count])
        known = dict(zip(sizes, inputs[count:], strict=True))

        def actual(arg: Any) -> Any:
            if not isinstance(arg, Value):
                return _static(trace, arg, known)
            return Pair(next(given), next(given)) if apart and arg.type.dtype.is_complex else next(given)

        kwargs = {k: map_arg(a, actual) for k, a in node.args.items()}
        kwargs = {k: list(v) if isinstance(v, tuple) else v for k, v in kwargs.items()}
        if apart:
            return _results(node, fn(**kwargs))
        written = [name for name in writes_of(node) if kwargs[name] is not None]
        kwargs |= {n: pytree.tree_map_only(torch.Tensor, torch.clone, kwargs[n]) for n in written}
        result = [_invoke(fn, node, dict(kwargs))]
        if written:  # other returned values, such as `state.add_(x)`, are dropped if the op returns nothing
            result = [*_own_results(node, result), *(kwargs[n] for n in written)]
        return [r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor)]

    return call


def _declared_writes(node: Node, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an op, which writes to no argument but those that the op's schema says it writes to.

    Raises:
        CaptureError: it does; torch.export keeps no such write, and the program would lose it.
    """
    overload = overload_of(node.op, node.origin.overload)
    formals = schema_of(overload).arguments if isinstance(overload, OpOverload) else ()

    def checked(*args: Any, **kwargs: Any) -> Any:
        given = [*zip(formals, args, strict=False), *((a, kwargs[a.name]) for a in formals if a.name in kwargs)]
        kept = {a.name: pytree.tree_leaves(x) for a, x in given if a.alias_info is None}
        before = {name: _versions(xs) for name, xs in kept.items()}
        result = fn(*args, **kwargs)
        written = [name for name, xs in kept.items() if before[name] != _versions(xs)]
        if written:
            names = ", ".join(f'"{name}"' for name in written)
            raise CaptureError(
                f"the function of {node.op} writes to its argument {' and '.join(written)}, which its definition does "
                f"not declare: declare it, mutates_args=[{names}], or write to a clone\n  at {node.origin}"
            )
        return result

    return checked


def _versions(values: Sequence[Any]) -> list[int]:
    return [version_of(x) for x in values if isinstance(x, torch.Tensor) and not x.is_inference()]


def _read(nodes: Sequence[Node], results: Sequence[Any]) -> list[Node]:
    """The nodes that something reads: torch's reference functions make empty tensors for their strides alone."""
    read = {v for v in results if isinstance(v, Value)}
    kept = []
    for node in reversed(nodes):
        if node.op.startswith("ir::") or not node.outputs or any(v in read for v in node.outputs):
            kept.append(node)
            read.update(node.inputs)
    return kept[::-1]


def writes_of(node: Node) -> tuple[str, ...]:
    """The arguments that the op writes to and whose new contents the node returns after its results."""
    overload = overload_of(node.op, node.origin.overload)
    if not isinstance(overload, OpOverload):
        return ()
    schema = op_schema(overload)
    return schema.writes if schema.fresh else ()


def _own_results(node: Node, results: Sequence[Any]) -> list[Any]:
    """What an op returns that is nothing that it writes to."""
    returns = schema_of(overload_of(node.op, node.origin.overload)).returns
    flat = results[0] if len(returns) > 1 else results
    return [r for r, s in zip(flat, returns, strict=False) if s.alias_info is None]


def _halves(value: Value) -> list[Value]:
    """A complex value as two real ones, a real one as it is."""
    if not value.type.dtype.is_complex:
        return [value]
    return [Value(f"{value.name}_{part}", value.type.with_dtype(value.type.dtype.real)) for part in ("re", "im")]


def _results(node: Node, result: Any) -> list[torch.Tensor]:
    """What a rule returned, flat, each part in the element type and shape of the node's result."""
    flat: list[torch.Tensor] = []
    for r, out in zip(result if isinstance(result, tuple) else (result,), node.outputs, strict=True):
        if isinstance(r, torch.Tensor):
            flat.append(r)
            continue
        kind = TORCH_DTYPES[out.type.dtype.real]
        shape = r.shape
        flat += [x.to(kind) if tuple(x.shape) == tuple(shape) else x.to(kind).expand(shape) for x in (r.re, r.im)]
    return flat


def _static(trace: TraceContext, arg: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(arg, DType):
        return TORCH_DTYPES[arg]
    return SETTINGS.get(arg, arg) if isinstance(arg, str) else trace.size(arg, known)


def _traced(call: Callable[..., Any], fakes: list[Any]) -> torch.fx.GraphModule:
    def sized(*inputs: Any) -> Any:
        with Sizes():
            return call(*inputs)

    with torch.no_grad():
        return make_fx(sized, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


def _signature(arg: Any) -> Any:
    return arg.type if isinstance(arg, Value) else (type(arg), arg)


def _argument_name(node: Node, index: int) -> str:
    names = [k for k, a in node.args.items() for v in (a if isinstance(a, tuple) else (a,)) if isinstance(v, Value)]
    name = names[index]
    return name if names.count(name) == 1 else f"{name}_{index - names.index(name)}"


def _invoke(fn: Callable[..., Any], node: Node, kwargs: dict[str, Any]) -> Any:
    """Call a body: positionally up to the schema's keyword-only part."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None:
        return fn(**kwargs)
    positional = [a.name for a in schema_of(overload).arguments if not a.kwarg_only]
    args = [kwargs.pop(name) for name in positional]
    return fn(*args, **kwargs)
