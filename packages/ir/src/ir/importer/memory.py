"""Writes made functional: who shares memory with whom, and what a write through a view means for the base.

A write gives the written name a new value. If that name is a view, the base gets the new value scattered in, up to the
tensor that owns the memory, and every other view of that tensor is taken again when it is next read. This is torch's
functionalisation on torch.export's own graph: nothing is traced again, so symbolic sizes stay. Views that have no
inverse here (as_strided, expand) are left to torch (`supported` says so).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode
from torch.multiprocessing.reductions import StorageWeakRef

from ir.graph import Value
from ir.importer.schema import OpSchema, op_schema

aten = torch.ops.aten
Emit = Callable[..., Any]  # (overload, fake result, name, **arguments) -> Value

_RESHAPES = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "squeeze", "unsqueeze"}
_SAME = {"alias", "detach", "contiguous", "to", "lift_fresh", "requires_grad", "dropout", "type_as", "_to_copy",
         "feature_dropout", "alpha_dropout", "resolve_conj", "resolve_neg", "expand_as", "positive"}  # fmt: skip
_SWAPS = {"transpose", "t", "swapaxes", "swapdims", "numpy_T", "mT"}
_PARTS = {"unbind", "split", "split_with_sizes", "chunk", "tensor_split"}
_SLICES = {"slice", "select", "narrow", "diagonal", "permute"}
INVERTIBLE = _RESHAPES | _SAME | _SWAPS | _PARTS | _SLICES
TRAINING_FLAG = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}


def writers(graph: torch.fx.Graph) -> list[FxNode]:
    """The nodes that write to memory, those of batch norms in training mode included."""
    return [n for n in graph.nodes if n.op == "call_function" and is_writer(n)]


def is_writer(node: FxNode) -> bool:
    """True if the node writes to one of its arguments."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = op_schema(node.target)
    if schema.op == "aten::detach_":
        return False  # it writes to the autograd graph only
    return schema.mutates or updates_statistics(schema, node)


def updates_statistics(schema: OpSchema, node: FxNode) -> bool:
    """Norms in training mode write to their running statistics although their schema does not say so."""
    flag = TRAINING_FLAG.get(schema.op)
    if flag is None:
        return False
    bound = schema.bind(node.args, node.kwargs)
    return bool(bound[flag]) and bound["running_mean"] is not None


def supported(module: torch.fx.GraphModule) -> bool:
    """True if every write of the program, sub-graphs included, can be made functional here."""
    graphs = [m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
    for graph in graphs:
        for writer in writers(graph):
            schema = op_schema(writer.target)
            if schema.op in TRAINING_FLAG:
                continue
            if not schema.fresh and not schema.in_place and (schema.functional is None or len(schema.writes) != 1):
                return False
            bound = schema.bind(writer.args, writer.kwargs)
            for written in (w for name in schema.writes for w in nodes_in(bound[name])):
                if not isinstance(written, FxNode) or not _invertible(written, _same_storage(written, writer)):
                    return False
    return True


def nodes_in(arg: Any) -> list[Any]:
    """A written argument as a list: the tensor, those of a list, nothing for None."""
    return list(arg) if isinstance(arg, (list, tuple)) else [] if arg is None else [arg]


def _invertible(node: FxNode, reliable: bool) -> bool:
    while (parent := view_parent(node)) is not None:
        name = _name(node)
        if name is None or name not in INVERTIBLE:
            return False
        if not reliable and name in ("reshape", "contiguous", "flatten", "to"):
            return False  # a view or a copy: only the storages of a fresh export can tell
        node = parent
    return True


def _name(node: FxNode) -> str | None:
    if not isinstance(node.target, torch._ops.OpOverload):
        return "alias" if "getitem" in str(node.target) else None
    schema = op_schema(node.target)
    return schema.op.removeprefix("aten::") if not schema.writes else "alias"


VIEW_OR_COPY = frozenset({"reshape", "contiguous", "flatten", "to", "dropout", "type_as", "_to_copy"})


def view_parent(node: FxNode) -> FxNode | None:
    """The node whose memory this node's result shares, or None if the memory is its own."""
    if node.op != "call_function":
        return None
    if not isinstance(node.target, torch._ops.OpOverload):
        source = node.args[0] if "getitem" in str(node.target) else None
        return source if isinstance(source, FxNode) and view_parent(source) is not None else None
    schema = op_schema(node.target)
    named = dict(zip(schema.names, node.args, strict=False)) | dict(node.kwargs)
    for name in (*(() if schema.fresh else schema.writes), *schema.views):
        source = named.get(name)
        if isinstance(source, FxNode):
            fake = node.meta.get("val")
            if schema.writes or not isinstance(fake, torch.Tensor) or not _has_storages(node, source):
                return source
            return source if _same_storage(source, node) else None
    return None


def handed_out(graph: FxGraph) -> set[FxNode]:
    """The graph's results, and what they are views of, or may be."""
    found: set[FxNode] = set()
    for result in graph.output_node().all_input_nodes:
        node: FxNode | None = result
        while node is not None and node not in found:
            found.add(node)
            above = view_parent(node)
            if above is None and _name(node) in VIEW_OR_COPY and node.all_input_nodes:
                above = node.all_input_nodes[0]
            node = above
    return found


def _has_storages(node: FxNode, source: FxNode) -> bool:
    """Fake tensors of a loaded .pt2 share nothing; there a plain view tells."""
    if _name(node) in VIEW_OR_COPY:
        return isinstance(node.meta.get("val"), torch.Tensor) and isinstance(source.meta.get("val"), torch.Tensor)
    return False


def _same_storage(a: FxNode, b: FxNode) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    try:
        return StorageWeakRef(x.untyped_storage()) == StorageWeakRef(y.untyped_storage())
    except NotImplementedError:  # what torch traced under vmap, as in flex_attention's masks, shows no storage
        return False


class Memory:
    """The state of one import: a value for each node, renewed where a write made it stale."""

    def __init__(self, env: dict[FxNode, Any], rebuild: Callable[[FxNode, Any], Any], emit: Emit) -> None:
        self.env = env
        self.parents: dict[FxNode, FxNode] = {}
        self.writes: dict[FxNode, int] = {}  # owner of memory -> number of writes so far
        self._valid: dict[FxNode, int] = {}
        self._rebuild = rebuild
        self._emit = emit

    def track(self, node: FxNode) -> None:
        """Note whose memory a new node's result lies in."""
        parent = view_parent(node)
        if parent is not None:
            self.parents[node] = parent
        self._valid[node] = self.writes.get(self.owner(node), 0)

    def alias(self, node: FxNode, parent: FxNode) -> None:
        """`node` is another name of `parent`: a placeholder of an inlined sub-graph, or a result of it."""
        self.parents[node] = parent
        self._valid[node] = self.writes.get(self.owner(node), 0)

    def owner(self, node: FxNode) -> FxNode:
        """The node that made the memory."""
        while node in self.parents:
            node = self.parents[node]
        return node

    def read(self, node: FxNode) -> Any:
        """The node's value as of now."""
        if node not in self.parents:
            return self.env[node]
        now = self.writes.get(self.owner(node), 0)
        if self._valid.get(node, 0) < now:
            base = self.read(self.parents[node])
            self.env[node] = base if _is_other_name(node) else self._rebuild(node, base)
            self._valid[node] = now
        return self.env[node]

    def write(self, node: FxNode, value: Value) -> None:
        """`node` now holds `value`: its bases take it in, its other views become stale."""
        chain = list(self._chain(node))
        bases = [self.read(p) for p in chain[1:]]
        owner = chain[-1]
        now = self.writes[owner] = self.writes.get(owner, 0) + 1
        for i, name in enumerate(chain):
            self.env[name], self._valid[name] = value, now
            if i + 1 < len(chain):
                value = self._scatter(name, bases[i], value)

    def _chain(self, node: FxNode) -> Iterator[FxNode]:
        yield node
        while node in self.parents:
            node = self.parents[node]
            yield node

    def _scatter(self, view: FxNode, base: Any, value: Any) -> Any:
        """The base with the view's place taken by `value`."""
        if _is_other_name(view):
            return value
        if not isinstance(view.target, torch._ops.OpOverload):  # getitem of a split, chunk or unbind
            parts = list(base)
            parts[int(view.args[1])] = value  # type: ignore[arg-type]
            return tuple(parts)
        schema = op_schema(view.target)
        bound = schema.bind(view.args, view.kwargs)
        op = schema.op.removeprefix("aten::")
        make = lambda overload, **kwargs: self._emit(overload, base.type, f"{view.name}_back", kwargs)  # noqa: E731
        if op in _SAME or (op in ("slice", "narrow") and value.type == base.type):
            return value  # all of the base is written
        if op in _RESHAPES:
            return make(aten.reshape.default, self=value, shape=base.type.shape)
        if op == "t" or op in ("numpy_T", "mT"):
            return make(aten.transpose.int, self=value, dim0=-2, dim1=-1) if base.type.rank > 1 else value
        if op in _SWAPS:
            dims = [v for k, v in bound.items() if k != "self"]
            return make(aten.transpose.int, self=value, dim0=dims[0], dim1=dims[1])
        if op == "permute":
            rank = base.type.rank
            order = [d % rank for d in bound["dims"]]
            return make(aten.permute.default, self=value, dims=tuple(order.index(i) for i in range(rank)))
        if op in _PARTS:
            return self._join(op, bound, base, value, make)
        if op == "narrow":
            start = bound["start"]
            return make(aten.slice_scatter.default, self=base, src=value, dim=bound["dim"], start=start,
                        end=start + bound["length"], step=1)  # fmt: skip
        scatter = {"slice": aten.slice_scatter, "select": aten.select_scatter, "diagonal": aten.diagonal_scatter}[op]
        rest = {k: v for k, v in bound.items() if k != "self"}
        return make(scatter.default, self=base, src=value, **rest)

    @staticmethod
    def _join(op: str, bound: Any, base: Any, parts: Any, make: Any) -> Any:
        joined = aten.stack.default if op == "unbind" else aten.cat.default
        return make(joined, tensors=parts, dim=bound["dim"])


def _is_other_name(node: FxNode) -> bool:
    """In-place results, no-ops and placeholders of inlined graphs are their parent under another name."""
    if node.op == "placeholder":
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return not (isinstance(node.args[0], FxNode) and isinstance(node.args[0].target, torch._ops.OpOverload)
                    and op_schema(node.args[0].target).returns == "list")  # fmt: skip
    schema = op_schema(node.target)
    return bool(schema.writes) or schema.op.removeprefix("aten::") in _SAME
