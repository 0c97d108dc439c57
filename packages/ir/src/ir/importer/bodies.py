"""Bodies: the graph that computes one node, traced for the node's own argument types and cached by signature."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir.dims import Expr, evaluate
from ir.errors import CaptureError
from ir.graph import Body, Graph, Node, Value, map_arg
from ir.importer.memory import supported, writers
from ir.importer.normalise import Importer
from ir.importer.schema import TORCH_DTYPES, overload_of
from ir.importer.symbols import Symbols
from ir.types import DType, TensorType

BODIES: dict[str, Callable[..., Any]] = {}  # op name or overload -> the portable body its owner gave it

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
    "max": torch.sym_max, "min": torch.sym_min, "float": torch.sym_float,
    "truediv": lambda a, b: a / b, "floor": lambda a: torch.sym_int(a), "trunc": lambda a: torch.sym_int(a),
    "sqrt": lambda a: torch.sym_sqrt(a), "pow": lambda a, b: a**b,
}  # fmt: skip


class Bodies:
    """The bodies of one capture's nodes."""

    def __init__(self, symbols: Symbols, program: Any = None) -> None:
        self.symbols = symbols
        self._mode = _fake_mode(program)
        self._cache: dict[Any, Body | None] = {}
        self.errors: dict[str, str] = {}  # overload -> why its body could not be traced

    def body(self, node: Node) -> Body | None:
        """The node's body: the one its owner gave, else torch's decomposition, else None."""
        if "::" not in node.op or node.op.startswith(("ir::", "higher_order::")):
            return None
        key = node.overload, tuple((k, map_arg(a, _signature)) for k, a in node.args.items())
        if key not in self._cache:
            self._cache[key] = None  # a body that needs itself has none
            self._cache[key] = self._make(node)
        return self._cache[key]

    def _make(self, node: Node) -> Body | None:
        own = BODIES.get(node.overload) or BODIES.get(node.op)
        fn = own or _decomposition(node)
        if fn is None:
            return None
        try:
            graph = self._trace(node, fn, named=own is not None)
        except NotImplementedError:
            return None
        except CaptureError:
            raise
        except Exception as error:
            self.errors[node.overload] = f"{type(error).__name__}: {error}"
            if own is not None:
                raise CaptureError(f"the body of {node.op} could not be traced: {error}\n  at {node.origin}") from error
            return None
        if any(n.overload == node.overload and n.args.keys() == node.args.keys() for n in graph.nodes):
            return None
        return Body(graph, node.op if own is not None else None)

    def _trace(self, node: Node, fn: Callable[..., Any], named: bool) -> Graph:
        values = list(node.inputs)
        with self._mode:
            fakes = [self.fake(v.type) for v in values]

        def call(*tensors: torch.Tensor) -> Any:
            given = iter(tensors)
            kwargs = {k: map_arg(a, lambda x: next(given) if isinstance(x, Value) else self._static(x))
                      for k, a in node.args.items()}  # fmt: skip
            kwargs = {k: list(v) if isinstance(v, tuple) else v for k, v in kwargs.items()}
            result = _invoke(fn, node, kwargs)
            return [r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor)]

        traced = _traced(call, fakes)
        writes = bool(writers(traced.graph))
        if writes and not supported(traced):
            traced = _traced(torch.func.functionalize(call, remove="mutations"), fakes)
        importer = Importer(self.symbols, traced)
        if writes:
            importer.remember()
        placeholders = [n for n in traced.graph.nodes if n.op == "placeholder"]
        inputs = []
        for i, (p, v) in enumerate(zip(placeholders, values, strict=True)):
            inputs.append(Value(f"in_{i}" if not named else _argument_name(node, i), v.type))
            importer.env[p] = inputs[-1]
        results = importer.run(traced.graph)
        if any(isinstance(w.tensor, FakeTensor) or w.tensor.is_meta for w in importer.weights.values()):
            raise NotImplementedError(f"the kernel of {node.op} makes its result out of sight of the tracer")
        names = tuple(f"out_{i}" for i in range(len(results)))
        return Graph(tuple(inputs), tuple(importer.nodes), tuple(results), names, importer.weights,
                     name=node.op.replace("::", "_"))  # fmt: skip

    def fake(self, type: TensorType) -> torch.Tensor:
        """A fake tensor of this type, its symbolic sizes torch's own."""
        shape = [self._size(d) for d in type.shape]
        return torch.empty(shape, dtype=TORCH_DTYPES[type.dtype])

    def _size(self, dim: Any) -> Any:
        if not isinstance(dim, Expr):
            return dim
        for name in dim.symbols - self.symbols.nodes.keys():
            env: Any = self._mode.shape_env
            self.symbols.nodes[name] = env.create_unbacked_symint()
            self.symbols.names[self.symbols.nodes[name].node.expr] = name
        return evaluate(dim, self.symbols.nodes, _FUNCTIONS)

    def _static(self, arg: Any) -> Any:
        if isinstance(arg, DType):
            return TORCH_DTYPES[arg]
        return self._size(arg)


def _traced(call: Callable[..., Any], fakes: list[torch.Tensor]) -> torch.fx.GraphModule:
    with torch.no_grad():
        return make_fx(call, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


def _signature(arg: Any) -> Any:
    return arg.type if isinstance(arg, Value) else (type(arg), arg)


def _argument_name(node: Node, index: int) -> str:
    names = [k for k, a in node.args.items() for v in (a if isinstance(a, tuple) else (a,)) if isinstance(v, Value)]
    name = names[index]
    return name if names.count(name) == 1 else f"{name}_{index - names.index(name)}"


def _fake_mode(program: Any) -> FakeTensorMode:
    """The capture's own fake mode, so that sizes in bodies are the sizes of the graph."""
    for node in program.graph.nodes if program is not None else ():
        fake = node.meta.get("val")
        if isinstance(fake, torch._subclasses.FakeTensor) and fake.fake_mode.shape_env is not None:
            return fake.fake_mode
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def _decomposition(node: Node) -> Callable[..., Any] | None:
    """torch's own decomposition: the composite kernel, or the decomposition table's function."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None or not isinstance(overload, torch._ops.OpOverload):
        return None
    from torch._decomp import global_decomposition_table

    table = global_decomposition_table["post_autograd"]
    if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"):
        return _kernel(overload, torch._C.DispatchKey.CompositeImplicitAutograd)
    fn = table.get(overload)
    if fn is not None:
        return fn
    own = node.op.startswith(("aten::", "prims::", "quantized_decomposed::"))  # other people's kernels are opaque
    if own and torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeExplicitAutograd"):
        return _kernel(overload, torch._C.DispatchKey.CompositeExplicitAutograd)
    return None


def _kernel(overload: Any, key: Any) -> Callable[..., Any]:
    """The composite kernel itself: make_fx's torch function mode would call the operator again in its place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return (overload.py_kernels.get(key) or partial(overload._op_dk, key))(*args, **kwargs)

    return call


def _invoke(fn: Callable[..., Any], node: Node, kwargs: dict[str, Any]) -> Any:
    """Call a body: positionally up to the schema's keyword-only part."""
    overload = overload_of(node.op, node.origin.overload)
    if overload is None:
        return fn(**kwargs)
    positional = [a.name for a in overload._schema.arguments if not a.kwarg_only]
    args = [kwargs.pop(name) for name in positional]
    return fn(*args, **kwargs)
