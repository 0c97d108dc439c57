"""Fake tensors for a saved program, made when something has to run its operators: its writes, say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import sympy
import torch

from ir.errors import CaptureError
from ir.importer.pt2.expressions import Size, Tree
from ir.importer.size_rules import known
from ir.importer.tensor_meta import Described, graphs_of
from ir.importer.torch_api import FakeTensorMode, pytree, shape_env, size_function, value_range


def install(module: torch.nn.Module, ranges: Mapping[str, Any], hints: Mapping[str, int]) -> Mapping[Any, Any]:
    """Put fake tensors in the place of the descriptions, all in one mode; the ranges by torch's symbols."""
    fakes = Fakes(ranges, hints)
    for graph in graphs_of(module):
        for node in graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = fakes.value(node.meta["val"])
    return fakes.ranges


class Fakes:
    """Tensors and numbers of torch's for those that a file describes; sizes are symbols of one environment."""

    def __init__(self, ranges: Mapping[str, Any], hints: Mapping[str, int]) -> None:
        self.env: Any = shape_env(assume_static_by_default=True)
        self.mode = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=self.env)
        self.ranges: dict[Any, Any] = {}
        self._given, self._hints = ranges, hints
        self._symbols: dict[str, Any] = {}
        self._sizes: dict[str, Any] = {}

    def value(self, described: Any) -> Any:
        """What stands in a live graph's `meta["val"]`."""
        leaf = (Described, Size)
        return pytree.tree_map(lambda v: self._one(v) if isinstance(v, leaf) else v, described)

    def _one(self, value: Any) -> Any:
        if isinstance(value, Size):
            return self._size(value)
        if value.layout is not torch.strided:
            raise CaptureError(f"a program that writes has a tensor of layout {value.layout}")
        shape, strides = ([self._one(s) if isinstance(s, Size) else s for s in x] for x in (value.shape, value.strides))
        with self.mode:
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device,
                                       requires_grad=value.requires_grad)  # fmt: skip

    def _size(self, size: Size) -> Any:
        if size.text not in self._sizes:
            expr = self._expression(size.tree)
            floating, truth = getattr(expr, "is_real", False) and not expr.is_integer, expr.is_Boolean
            create = self.env.create_symboolnode if truth else self.env.create_symintnode
            if floating and not truth:
                create = self.env.create_symfloatnode
            self._sizes[size.text] = create(expr) if truth else create(expr, hint=size.hint)
        return self._sizes[size.text]

    def _expression(self, tree: Tree) -> Any:
        if tree.symbol is not None:
            return self._symbol(tree.symbol)
        if not tree.function:
            return sympy.sympify(tree.number, strict=True)
        return _function(tree.function)(*(self._expression(a) for a in tree.args))

    def _symbol(self, name: str) -> Any:
        if name not in self._symbols:
            if name.startswith(("zuf", "zf")):
                symbol = sympy.Symbol(name, real=True)
            else:
                symbol = sympy.Symbol(name, integer=True, **({} if name.startswith("u") else {"positive": True}))
            self._symbols[name] = symbol
            self._keep(name)
            hint = self._hints.get(name)
            if hint is not None:
                add = getattr(self.env, "add_backed_var_to_val", None) or self.env.add_var_to_val
                add(symbol, hint)
            if name in self._given:
                low, high = self._given[name]
                self.ranges[symbol] = value_range(low, high)
                self.env.constrain_symbol_range(symbol, compiler_min=self.ranges[symbol].lower,
                                                compiler_max=self.ranges[symbol].upper)  # fmt: skip
        return self._symbols[name]

    def _keep(self, name: str) -> None:
        """Operators that run make new symbols, by number: under the name of one of the file it would lose its range."""
        for prefix, counter in (("u", "unbacked_symint_counter"), ("zuf", "unbacked_symfloat_counter")):
            number, count = name.removeprefix(prefix), getattr(self.env, counter, None)
            if number != name and number.isdigit() and isinstance(count, int):
                setattr(self.env, counter, max(count, int(number) + 1))


@cache
def _function(name: str) -> Any:
    if not known(name):
        raise CaptureError(f"a size of the file uses {name}, which has no form in the IR")
    return size_function(name) or getattr(sympy, name, None) or sympy.functions.elementary.piecewise.ExprCondPair
