"""EagerHelper: the verbs of the eager target. A handler's `emit` records one call of a torch function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from eager_backend.bind import arguments_of, flat, returns_tensors
from eager_backend.building import io_contract
from eager_backend.building.constants import Constants
from eager_backend.building.default_dtype import told
from eager_backend.building.own_dtype import OwnDtype
from eager_backend.building.plan import Plan
from eager_backend.building.source import Source
from eager_backend.building.steps import Block, Formula, Function, Names, Number, Slot, Step, map_leaves
from eager_backend.building.verbs import Verbs
from eager_backend.passes import PASSES, GraphPass
from eager_backend.passes.autotune import example
from eager_backend.runtime.program import Program
from ir.dims import Dim, Expr, evaluate
from ir.graph import Body, Graph, Value, Weight
from ir.helper import OpHelper
from ir.importer.schema import TORCH_DTYPES
from ir.types import DType, TensorType


class EagerHelper(OwnDtype, Verbs, OpHelper[Slot]):
    """Collects the steps of one graph."""

    value_class = Slot
    target: Any  # contracts.Options

    def __init__(self, target: Any, graph: Graph) -> None:
        super().__init__(target, graph)
        self.names = Names()
        self.source = Source(self.names)
        self.block = Block(self.names.take("run"))
        self.constants = Constants(self.source)
        self._by_weight: dict[int, Slot] = {}
        self._functions: dict[Graph, tuple[Any, tuple[str, ...]]] = {}

    # -- emit ------------------------------------------------------------------------------------------------------

    @overload  # type: ignore[override]
    def emit(self, fn: Any, *args: Any, type: TensorType, **kwargs: Any) -> Slot: ...
    @overload
    def emit(self, fn: Any, *args: Any, type: Sequence[TensorType] | None = None, **kwargs: Any) -> Any: ...
    def emit(
        self,
        fn: Callable[..., Any] | Function | Number,
        *args: Any,
        type: TensorType | Sequence[TensorType] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Record the call `fn(*args, **kwargs)`; sizes among the arguments are computed first, each once a call.

        Args:
            fn: a torch function or a method of torch.Tensor; `plain` bindings cost half of an OpOverload.
            type: the type of the result, or a sequence where `fn` returns one; None takes the node's own results,
                which is right for the last step of a handler.

        Raises:
            TypeError: `fn` cannot be called.
        """
        if not callable(fn) and not isinstance(fn, (Function, Number)):
            raise TypeError(_no_function(fn))
        if type is None:
            single, types = self.node.returns == "one", self.results
        else:
            single = isinstance(type, TensorType)
            types = (type,) if isinstance(type, TensorType) else tuple(type)
        outputs = tuple(self._slot(f"{self.node.name}_{i}" if i else self.node.name, t) for i, t in enumerate(types))
        if self.target.dtype is None:
            self._step(fn, args, kwargs, outputs, single)
        else:
            outputs = self._own_step(fn, args, kwargs, outputs, single)
        return outputs[0] if single else list(outputs)

    def native(self, fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """The node as one call of `fn`, its arguments in the order of the schema, trailing defaults left out."""
        node, arguments = told(self, arguments)
        args, kwargs = arguments_of(node, arguments, self.target.device)
        return self.emit(fn if returns_tensors(self.node) else flat(fn), *args, **kwargs)

    def _step(
        self, fn: Any, args: Any, kwargs: dict[str, Any], outputs: tuple[Slot | Number, ...], single: bool
    ) -> None:
        args = map_leaves(args, self._argument)
        kwargs = {k: map_leaves(a, self._argument) for k, a in kwargs.items()}
        self.block.steps.append(Step(fn, args, kwargs, outputs, single, getattr(self, "node", None)))

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Expr):
            return self.number(arg)
        if isinstance(arg, DType):
            return self.dtype(arg)
        if isinstance(arg, float):
            return self._limit(arg)
        if isinstance(arg, Slot):
            assert arg.home is None or arg.home is self.block, f"{arg.name} is a local of another block"
        return arg

    def _limit(self, number: float) -> float:
        """The largest or lowest float32 (`torch.finfo`, in masks) as that of the program's type; others as they are."""
        wide = any(t.dtype is DType.float64 for t in self.results) if hasattr(self, "node") else False
        if self.target.dtype is None or abs(number) != torch.finfo(torch.float32).max or wide:
            return number
        return math.copysign(min(torch.finfo(self.target.dtype).max, abs(number)), number)

    def _slot(self, wish: str, type: TensorType) -> Slot:
        return Slot(self.names.take(wish), type, self.block)

    def dtype(self, dtype: DType | None) -> torch.dtype | None:
        """torch's element type, or the program's own in place of float32."""
        if dtype is DType.float32 and self.target.dtype is not None:
            own: torch.dtype = self.target.dtype
            return own
        return None if dtype is None else TORCH_DTYPES[dtype]

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Any:
        """A dimension as it is: `emit` turns an expression into a number where it is used."""
        return dim

    def number(self, expr: Expr) -> Number:
        """The number of this expression in this block, computed on first use."""
        name = expr.as_symbol
        found = self.block.numbers.get(expr)
        if found is None:
            if name is not None:
                found = self._symbol(name)
            else:
                needed = {s: self._symbol(s) for s in sorted(expr.symbols)}
                found = Number(self.names.take("size"))
                self._step(Formula(expr, needed), (), {}, (found,), True)
            self.block.numbers[expr] = found
        return found

    def _symbol(self, name: str) -> Number:
        """A symbol's number: read off the tensor that carries it, or handed in by the surrounding block."""
        found = self.block.numbers.get(name)
        if found is not None:
            return found
        slot, source = self.driver.symbol(name)
        found = self.block.numbers[name] = Number(self.names.take(name))
        if slot.home not in (self.block, None):  # a buffer is at hand everywhere
            self.block.outer[name] = found
            return found
        if source.axis is None:
            self._step(Tensor.item, (slot,), {}, (found,), True)
            return found
        plain = source.scale == 1 and source.offset == 0
        size = found if plain else Number(self.names.take("size"))
        self._step(Tensor.size, (slot, source.axis), {}, (size,), True)
        if not plain:
            self._step(_solve, (size, source.offset, source.scale), {}, (found,), True)
        return found

    # -- values ----------------------------------------------------------------------------------------------------

    def constant(self, array: np.ndarray[Any, Any], name: str = "") -> Slot:
        dtype = DType[array.dtype.name]
        data = torch.from_numpy(np.array(array)).to(self.target.device, self.dtype(dtype))
        return self.constants.add(data, name or "constant", TensorType(dtype, array.shape))

    def scalar(self, value: Any, dtype: DType) -> Slot:
        result: Slot = self.emit(
            torch.scalar_tensor, value, dtype=dtype, device=self.target.device, type=TensorType(dtype, ())
        )
        return result

    def convert(self, x: Slot, dtype: DType) -> Slot:
        result: Slot = self.emit(Tensor.to, x, dtype, type=x.type.with_dtype(dtype))
        return result

    def input(self, value: Value) -> Slot:
        slot = self._slot(value.name, value.type)
        self.block.inputs.append(slot)
        return io_contract.accept(self, value, slot)

    def weight(self, value: Value, weight: Weight) -> Slot:
        """The model's own tensor, moved if it lies elsewhere; a buffer that the model writes to is a copy."""
        tensor: Tensor = weight.tensor
        if id(tensor) not in self._by_weight:
            with torch.inference_mode(False), torch.no_grad():
                private = tensor.detach().to(self.target.device, self.dtype(weight.type.dtype))
                if weight.name in self.graph.updates and private.data_ptr() == tensor.data_ptr():
                    private = private.clone()
            # matmul folds a batch or not by this flag, in inference as well
            private.requires_grad_(tensor.requires_grad)
            slot = self.constants.add(private, f"w_{weight.name}", value.type)
            self._by_weight[id(tensor)] = slot
            if weight.name in self.graph.updates:
                self.constants.written.add(slot)
                self.constants.captured[slot.name] = tensor
        self.constants.model_names[weight.name] = self._by_weight[id(tensor)].name
        return self._by_weight[id(tensor)]

    def local(self, wish: str, type: TensorType) -> Slot:
        """A new tensor of the current block."""
        return self._slot(wish, type)

    def hint(self, dim: Dim) -> int | None:
        """The size that passes choose for: the target's or the example's; None for one that no input carries."""
        try:
            return int(evaluate(dim, self._hints))
        except KeyError:
            return None

    @cached_property
    def _hints(self) -> dict[str, int]:
        """The symbols' values that the target names, or else in the example inputs, if the program has any."""
        tensors = example(self.graph) or []
        by_input = dict(zip(self.graph.inputs, tensors, strict=bool(tensors)))
        found = {
            name: _solve(by_input[s.value].shape[s.axis], s.offset, s.scale)
            for name, s in self.graph.sources.items()
            if s.value in by_input and s.axis is not None
        }
        return {**found, **self.target.sizes}

    # -- nested programs -------------------------------------------------------------------------------------------

    def call(self, body: Body, inputs: Sequence[Slot]) -> Sequence[Slot]:
        results: list[Slot] = self.emit(self.function(body.graph), *inputs, type=self.results)
        return results

    def function(self, graph: Graph) -> Any:
        """A graph as a callable of its tensors that returns a tuple: a branch, a loop body, a custom op's body.

        What it reads of the sizes around it is bound to it here, where they are known.
        """
        if graph not in self._functions:
            outer, self.block = self.block, Block(self.names.take(graph.name))
            self.block.inputs = [self._slot(v.name, v.type) for v in graph.inputs]
            results = self.driver.inline(graph, list(self.block.inputs))
            # the graph drops copies, so it may hand back inputs and constants, which branches and ops must not
            self.block.results = [io_contract.own(self, results, i) for i in range(len(results))]
            inner, self.block = self.block, outer
            name = self._compile(inner)
            self._functions[graph] = Function(name), tuple(inner.outer)
        function, symbols = self._functions[graph]
        if not symbols:
            return function
        bound = Number(self.names.take(f"{function.name}_sized"))
        self._step(partial, (function, *(self._symbol(s) for s in symbols)), {}, (bound,), True)
        return bound

    def finish(self, results: dict[str, Slot]) -> Program:
        if self.target.autotune:
            tuned: Program = self.target.tuned(self.graph, self.driver.registry)
            return tuned
        self.block.entries = io_contract.entries(self, self.block.inputs)
        self.block.results = io_contract.results(self, results)
        entry = self._compile(self.block)
        run = self.source.compile(entry)
        self.constants.keep(self.source.used)
        self.source.settle()
        as_captured = self.target.dtype is None and self.target.device.type == "cpu"
        exact = not self.target.chosen and self.target.dtype is None
        plan = Plan(
            self.graph, self.source, self.block, self._values(), self.target.device, exact, as_captured,
            self.target, self.driver.registry,
        )  # fmt: skip
        return Program(plan, run, self.constants)

    def _values(self) -> dict[Slot, Value]:
        """The graph's values by the slots that hold them."""
        made = {v: self.driver.env[v] for n in self.graph.nodes for v in n.outputs}
        return {s: v for v, s in reversed(made.items()) if isinstance(s, Slot) and s.home is self.block}

    def _compile(self, block: Block) -> str:
        for name in self.target.chosen:
            each = PASSES[name]
            if not isinstance(each, GraphPass):
                each(self, block)
        return self.source.function(block)


def _solve(size: int, offset: int, scale: int) -> int:
    """The symbol of a dimension `scale * symbol + offset`."""
    return (size - offset) // scale


def _no_function(op: Any) -> str:
    """What to write in place of an op that is no function; torch's own where it is a name of one."""
    name = str(op).rpartition("::")[2].partition(".")[0]
    found = next(
        (p for p, home in (("torch", torch), ("torch.Tensor", Tensor)) if callable(getattr(home, name, 0))), ""
    )
    return f"h.emit takes a function of torch and no {type(op).__name__}: {op!r:.60}; give " + (
        f"{found}.{name}" if found else "one such as torch.relu"
    )
