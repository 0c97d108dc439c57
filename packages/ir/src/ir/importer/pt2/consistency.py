"""That a file's graph is one: each operator run once on tensors without data gives what the file says it gives.

Sizes are those of the example; one that data decides is a number at which the graph's assertions hold. Nothing is
computed and no memory taken; what has no such kernel is trusted. A graph in which a size, an element type or an
argument was changed would else be exported with wrong numbers, or end in the error of whoever reads it first.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node as FxNode

from ir.dim_functions import left_shift, power
from ir.errors import CaptureError
from ir.importer import fake_rules
from ir.importer.checked import reads_unchecked
from ir.importer.pt2.expressions import Size
from ir.importer.tensor_meta import Described, graphs_of
from ir.importer.torch_api import DataDependentOutputException, HigherOrderOperator, OpOverload, pytree, schema_of
from ir.importer.unchecked_numbers import base_name, check_numbers, is_looked_into
from ir.importer.without_storage import NO_MEMORY, UncheckedError, may_end_the_process

_META = torch.device("meta")
_NO_TRUTH = "cond must be a bool"  # torch's rule of upsampling no elements asks a product of sizes
_TRIED = 3, 4, 2, 6, 5, 8, 7, 9, 10, 12, 1, 0, 24, 60, 420  # what a size is taken for that data decides
_MOST_TRIED = 10_000  # conditions in search of these, beyond one time each
_MOST_NAMES = 300  # of such sizes: the search is as deep
_IN_BOUNDS = {operator.pow: power, operator.lshift: left_shift}  # Python's own compute for hours
_LONGEST_LIST = 20_000  # of tensors: an operator that makes as many as a size says is not run beyond


def check_results(module: torch.nn.Module, hints: Mapping[str, int], ranges: Mapping[str, Any]) -> None:
    """Run every graph of the program so.

    Raises:
        CaptureError: a node cannot be run, or gives another element type, shape or number than the file says.
    """
    run = _Run({**hints, **numbers_for(_asserted(module, hints), hints, ranges)}, hints, ranges)
    with torch.no_grad():
        for graph in graphs_of(module):
            run.graph(graph)
        for owner in module.modules():
            _check_conditions(owner)


class _Tensor(NamedTuple):
    """A tensor at the sizes of the example."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}".removeprefix("torch.")


class _Run:
    def __init__(self, numbers: Mapping[str, int], hints: Mapping[str, int], ranges: Mapping[str, Any]) -> None:
        self._numbers, self._hints, self._ranges = numbers, hints, ranges
        self._sizes: dict[str, Any] = {}
        self._met: set[str] = set()  # symbols of these
        self._made: dict[Any, Any] = {}  # layers repeat: what an operator gave for the same arguments
        self._rules = fake_rules.rules()

    def graph(self, graph: torch.fx.Graph) -> None:
        """Run one graph: every node on what the file says of its arguments."""
        env: dict[Any, Any] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "call_function"):
                open_ = node.target in self._rules  # torch leaves to data what these tell
                known = self._known(node.meta.get("val"), not open_ and not self._reads_data(node))
                env[node] = self._said(node.meta.get("val"))
            if node.op != "call_function":
                continue
            args, kwargs = _given(node.args, env), {k: _given(a, env) for k, a in node.kwargs.items()}
            if isinstance(node.target, OpOverload):
                key = node.target, _key(args), tuple((k, _key(a)) for k, a in kwargs.items())
                if key not in self._made:
                    self._made[key] = self._operator(node, args, kwargs)
                _default_dtype(node, env[node], self._made[key], args, kwargs)
                _compare(node, env[node], self._made[key], known)
            elif isinstance(env[node], int | float) and node.target is not operator.getitem:
                _compare(node, env[node], _number(node.target, args), known)

    def _said(self, value: Any) -> Any:
        if isinstance(value, Size):
            return self._size(value)
        if isinstance(value, Described) and value.layout is torch.strided:
            return _Tensor(value.dtype, tuple(map(self._size, value.shape)), tuple(map(self._size, value.strides)))
        return [self._said(v) for v in value] if isinstance(value, list | tuple) else value

    def _size(self, size: Any) -> Any:
        if not isinstance(size, Size):
            return size
        if size.text not in self._sizes:
            self._met.update(size.tree.symbols)
            self._sizes[size.text] = size.tree.value(self._symbol)
        return self._sizes[size.text]

    def _known(self, value: Any, sure: bool) -> Any:
        """True for each size in what a node gives; False, if the node is not `sure` of its sizes, for a new symbol."""
        if isinstance(value, Size):
            return sure or value.text in self._sizes or self._met.union(self._hints).issuperset(value.tree.symbols)
        if isinstance(value, Described):
            return [self._known(size, sure) for size in value.shape]
        return [self._known(v, sure) for v in value] if isinstance(value, list | tuple) else True

    def _symbol(self, name: str) -> Any:
        return self._numbers[name] if name in self._numbers else _within(self._ranges, name, _TRIED[0])

    def _operator(self, node: FxNode, args: Any, kwargs: Any) -> Any:
        """What the operator gives, None where that is not known without data."""
        target: Any = node.target
        leaves = pytree.tree_leaves((args, kwargs), is_leaf=lambda a: isinstance(a, _Tensor))
        if any(isinstance(a, Described) for a in leaves) or torch.Tag.data_dependent_output in target.tags:
            return None
        if target is torch.ops.aten.sym_storage_offset.default:  # tensors without data all begin at 0
            return None
        names = [a.name for a in schema_of(target).arguments]
        if any("List" in str(r.real_type) for r in schema_of(target).returns):
            pieces = _pieces(base_name(target), dict(zip(names, args, strict=False)) | kwargs)
            if pieces is not None:
                _as_many(node, pieces)
            elif any(s > _LONGEST_LIST for t in leaves if isinstance(t, _Tensor) for s in t.shape):
                return None
        args, kwargs = _on_meta(names, args, kwargs)
        try:
            args, kwargs = pytree.tree_map(_without_data, (args, kwargs), is_leaf=lambda a: isinstance(a, _Tensor))
            _check_arguments(node, target, args, kwargs)
            made = self._rules.get(target, target)(*args, **kwargs)
        except (NotImplementedError, DataDependentOutputException):
            return None
        except CaptureError:
            raise
        except Exception as error:
            said = str(error)
            if (
                "meta" in said.lower()
                or NO_MEMORY in said
                or _NO_TRUTH in said
                or "data-dependent" in said.lower()
                or self._reads_data(node)
            ):
                return None
            line = said.strip().partition("\n")[0]
            raise CaptureError(f"{target} cannot compute what the node {node.name} asks for: {line:.200}") from error
        return pytree.tree_map_only(torch.Tensor, lambda t: _Tensor(t.dtype, tuple(t.shape), ()), made)

    def _reads_data(self, node: FxNode) -> bool:
        """True if an argument is a number that data decides, such as an index: nothing is known of it here."""
        sizes = (v for n in node.all_input_nodes if isinstance(v := n.meta.get("val"), Size))
        return any(name not in self._hints for size in sizes for name in size.tree.symbols)


def _check_arguments(node: FxNode, target: Any, args: Any, kwargs: Any) -> None:
    """Raises CaptureError: the operator does not look at what it is given, and would end the process or never end."""
    if reads_unchecked(target) and may_end_the_process(target, args, kwargs):
        raise CaptureError(f"the node {node.name} calls {target}, which does not look at what it is given here")
    if is_looked_into(target):
        try:
            check_numbers(target, args, kwargs)
        except UncheckedError as error:
            raise CaptureError(f"the node {node.name}: {error}") from error


def _asserted(module: torch.nn.Module, hints: Mapping[str, int]) -> list[Size]:
    """What the graphs assert of sizes that data decides."""
    nodes = (n for graph in graphs_of(module) for n in graph.nodes if n.target is torch.ops.aten._assert_scalar.default)
    said = (n.args[0].meta.get("val") for n in nodes if isinstance(n.args[0], FxNode))
    return [s for s in said if isinstance(s, Size) and not hints.keys() >= {*s.tree.symbols}]


def numbers_for(asserted: list[Size], hints: Mapping[str, int], ranges: Mapping[str, Any]) -> dict[str, int]:
    """A number for each size that data decides, at which all that is asserted of them holds; nothing if none is found.

    Chosen one after the other: what is asserted of the sizes up to one decides about that one.
    """
    names = [*dict.fromkeys(name for s in asserted for name in s.tree.symbols if name not in hints)]
    place = {name: i for i, name in enumerate(names)}
    of_last: list[list[Size]] = [[] for _ in names]
    for s in asserted:
        of_last[max(place[n] for n in s.tree.symbols if n in place)].append(s)
    found: dict[str, int] = {}
    left = _MOST_TRIED + len(asserted)

    def holds(s: Size) -> bool:
        nonlocal left
        left -= 1
        try:
            return bool(s.tree.value(lambda name: found.get(name, hints.get(name))))
        except (ArithmeticError, ValueError, TypeError, CaptureError):
            return False

    def chosen(i: int) -> bool:
        if i == len(names):
            return True
        for number in dict.fromkeys(_within(ranges, names[i], n) for n in _TRIED):
            found[names[i]] = number
            if left > 0 and all(map(holds, of_last[i])) and chosen(i + 1):
                return True
        return False

    return found if len(names) <= _MOST_NAMES and chosen(0) else {}


def _within(ranges: Mapping[str, Any], name: str, number: int) -> int:
    low, high = ranges.get(name, (None, None))
    return max(low or 0, number) if high is None else max(low or 0, min(number, high))


def _check_conditions(owner: Any) -> None:
    """That what a branch or a loop asks for is one truth value, as torch.cond and while_loop see to."""
    for node in owner.graph.nodes if isinstance(getattr(owner, "graph", None), torch.fx.Graph) else ():
        kind = node.target.name() if isinstance(node.target, HigherOrderOperator) and node.args else ""
        asked = node.args[0] if kind in ("cond", "while_loop") else None
        if kind == "while_loop" and isinstance(asked, FxNode):
            inner = getattr(getattr(owner, str(asked.target), None), "graph", None)
            asked = next(iter(pytree.tree_leaves(inner.output_node().args)), None) if inner is not None else None
        said = asked.meta.get("val") if isinstance(asked, FxNode) else None
        if isinstance(said, Described) and any(size != 1 for size in said.shape):
            raise CaptureError(f"the node {node.name} takes a tensor {list(said.shape)} for one truth value")


def _given(arg: Any, env: Mapping[Any, Any]) -> Any:
    if isinstance(arg, FxNode):
        return env.get(arg)
    return [_given(a, env) for a in arg] if isinstance(arg, list | tuple) else arg


def _key(arg: Any) -> Any:
    """Hashable, and different for 1, 1.0 and True."""
    if isinstance(arg, _Tensor):
        return arg
    return tuple(map(_key, arg)) if isinstance(arg, list | tuple) else (type(arg), arg)


def _pieces(op: str, given: Mapping[str, Any]) -> int | None:
    """How many tensors an operator cuts one into by a number, None of any other operator."""
    if isinstance(sections := given.get("sections"), int):
        return sections
    tensor, dim, step = given.get("self"), given.get("dim", 0), given.get("split_size")
    if not isinstance(tensor, _Tensor) or not isinstance(dim, int) or not -len(tensor.shape) <= dim < len(tensor.shape):
        return None
    size: int = tensor.shape[dim]
    if op in ("unbind", "unbind_copy"):
        return size
    if isinstance(chunks := given.get("chunks"), int):
        if not size:
            return chunks  # all of them empty
        step = -(-size // max(chunks, 1))
    return max(-(-size // max(step, 1)), 1) if isinstance(step, int) else None


def _as_many(node: FxNode, count: int) -> None:
    """Raises CaptureError: a node gives another number of results than the file says."""
    said = node.meta.get("val")
    if isinstance(said, list | tuple) and len(said) != count:
        raise CaptureError(f"the node {node.name} gives {count} results, the file says {len(said)}")


def _on_meta(names: list[str], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with the device without memory where the operator takes one and none, or None, is given."""
    place = names.index("device") if "device" in names else len(names)
    if place < len(args):
        return (*args[:place], args[place] or _META, *args[place + 1 :]), kwargs
    return args, kwargs if place == len(names) else kwargs | {"device": kwargs.get("device") or _META}


def _without_data(arg: Any) -> Any:
    if isinstance(arg, _Tensor):
        return torch.empty_strided(arg.shape, arg.strides, dtype=arg.dtype, device=_META)
    return _META if isinstance(arg, torch.device) else arg


def _number(target: Any, args: Any) -> Any:
    if "functorch" in (getattr(target, "__module__", "") or "") or not all(isinstance(a, int | float) for a in args):
        return None
    try:
        return _IN_BOUNDS.get(target, target)(*args)
    except (ArithmeticError, ValueError, TypeError):
        return None


def _default_dtype(node: FxNode, said: Any, made: Any, args: Any, kwargs: Any) -> None:
    """Raises CaptureError: it is torch's default dtype that makes the difference, and the file does not say it.

    No kernel is run to find that out: the arguments are the file's.
    """
    here = torch.get_default_dtype()
    if not isinstance(said, _Tensor) or not isinstance(made, _Tensor) or said.dtype == made.dtype:
        return
    given = pytree.tree_leaves((args, kwargs), is_leaf=lambda a: isinstance(a, _Tensor))
    types = [a if isinstance(a, torch.dtype) else a.dtype for a in given if isinstance(a, (torch.dtype, _Tensor))]
    if made.dtype not in (here, here.to_complex()) or any(map(_is_inexact, types)) or not _is_inexact(said.dtype):
        return
    then = str(torch.finfo(said.dtype).dtype).removeprefix("torch.")
    raise CaptureError(
        f"the node {node.name} gives {made}, the file says {said}: that is torch's default dtype, "
        f"{str(here).removeprefix('torch.')} here and {then} where the file was made; call "
        f"torch.set_default_dtype(torch.{then}) before it is opened"
    )


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _compare(node: FxNode, said: Any, made: Any, known: Any) -> None:
    """Raises CaptureError: what a node gives is not what the file says of it, in what is known of it."""
    if isinstance(made, _Tensor) and isinstance(said, _Tensor):
        pairs = zip(said.shape, made.shape, known, strict=False)
        fits = len(said.shape) == len(made.shape) and all(a == b or not sure for a, b, sure in pairs)
        if said.dtype != made.dtype or not fits:
            raise CaptureError(f"the node {node.name} gives {made}, the file says {said}")
    elif isinstance(said, list | tuple) and isinstance(made, list | tuple):
        _as_many(node, len(made))
        read: set[Any] = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
        for i in read:  # what nobody reads, kernels leave empty
            _compare(node, said[i], made[i], known[i])
    elif isinstance(said, int | float) and isinstance(made, int | float) and said != made and known:
        raise CaptureError(f"the node {node.name} gives {made} in the example, the file says {said}")
