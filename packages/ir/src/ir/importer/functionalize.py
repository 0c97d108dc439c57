"""Writes made functional: a write through a view is a scatter into the memory that the view lies in.

Each tensor is a `Name` of a `View`, a place in a `Memory`. A write gives the view a new value and puts it into the view
that it was made of, up to the one that owns the memory (`root`); every other view of that memory is taken anew when it
is next read. This is torch's functionalisation on torch.export's own graph: nothing is traced again, so symbolic sizes
stay. What shares memory with what is observed (`aliases.py`), how one view lies in another is told from sizes and
strides (`strided.py`), and what no single op undoes goes by places in the memory, one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node as FxNode

from ir import geometry
from ir.bounds import bounds
from ir.dims import Dim, Expr, call, evaluate, substitute, symbol
from ir.errors import CaptureError
from ir.graph import Value
from ir.importer.aliases import Outcome, Seen, seen_in
from ir.importer.conditions import are_open
from ir.importer.node_builder import NodeBuilder
from ir.importer.origins import origin_of
from ir.importer.scatters import Scatters
from ir.importer.schema import DTYPES, OpSchema, Twin
from ir.importer.storages import Memory, Name, Recipe, View, names_in, views_in
from ir.importer.strided import Place, between, dense_order, overlaps
from ir.ops import DROPOUTS
from ir.types import TensorType


class Memories:
    """The state of one import."""

    def __init__(self, importer: NodeBuilder) -> None:
        self.importer = importer
        self.scatters = Scatters(importer.emit, self.number, bool(importer.symbols.names))
        self.given: dict[FxNode, View] = {}  # placeholders as they are handed in
        self._names: dict[int, Name] = {}  # by the id of the fake tensor
        self._memories: dict[int, Memory] = {}
        self._offsets: dict[str, Dim] = {}  # what torch's symbols for places in memory are
        self._turns: Counter[FxNode] = Counter()  # how many nodes an op that writes became so far

    def number(self, dim: Dim) -> int:
        """The size in the example, or any where data decides it."""
        if isinstance(dim, int):
            return dim
        nodes = self.importer.symbols.nodes
        hints = {s: nodes[s].node.hint if s in nodes and nodes[s].node.has_hint() else 7 for s in dim.symbols}
        return int(evaluate(dim, hints))

    # -- names -----------------------------------------------------------------------------------------------------

    def name(self, seen: Seen, value: Value | None, parent: View | None = None, recipe: Recipe | None = None) -> Name:
        """The tensor's name; its first time it has this value."""
        found = self._names.get(id(seen.tensor))
        if found is None:
            found = self._names[id(seen.tensor)] = Name(self._view(seen, value, parent, recipe))
        return found

    def _view(self, seen: Seen, value: Value | None, parent: View | None, recipe: Recipe | None) -> View:
        memory = self._memories.setdefault(seen.memory, Memory())
        view = View(memory, seen, self.importer.symbols, value, memory.writes, parent, recipe)
        if self._offsets:
            view.__dict__["place"] = replace(view.place, offset=substitute(view.place.offset, self._offsets))
        if parent is None and value is not None and memory.root is None:
            memory.tops.append(view)
        return view

    def known(self, seen: Any) -> Any:
        """The names of a result that is nothing but tensors of its arguments, else None."""
        if isinstance(seen, tuple):
            names = tuple(map(self.known, seen))
            return None if not names or None in names else names
        return None if seen is None else self._names.get(id(seen.tensor))

    def made(self, node: FxNode, schema: OpSchema | None, seen: Any, result: Any) -> Any:
        """An op's result as names: of memory of its own, or of views of its arguments."""
        recipe: Recipe | None = None
        around: list[View] = []
        if schema is not None:
            bound = {n: self.importer.raw(a) for n, a in schema.bind(node.args, node.kwargs).items()}
            around = [n.view for n in names_in(tuple(bound.values()))]
            if any(v.memory is self._memories.get(s.memory) for v in around for s in seen_in(seen)):
                followed = schema.views or bound.keys()  # not the places of a split, which are read once
                args = {n: views_in(a) if n in followed else self.read(a) for n, a in bound.items()}
                recipe = Recipe(node, schema, args)
        count = iter(range(1 << 30))

        def each(seen: Any, value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(each, seen, value))
            if seen is None:
                return value
            place = next(count)
            parent = next((v for v in around if v.memory is self._memories.get(seen.memory)), None)
            name = self.name(seen, value, parent, recipe if parent is not None else None)
            if parent is not None and recipe is not None:
                recipe.made[place] = name.view
                self._selected(name.view, parent, recipe)
            return name

        return each(seen, result)

    def _selected(self, view: View, parent: View, recipe: Recipe) -> None:
        """The place of `x[i]` where data decides i: torch has a symbol for its offset, which says nothing of i."""
        index = recipe.args.get("index")
        if recipe.schema.op == "aten::select" and isinstance(index, Expr) and view.parent is parent:
            axis = geometry.axis(recipe.args["dim"], len(parent.place.shape))
            size, stride = parent.place.shape[axis], parent.place.strides[axis]
            if bounds(index, self.importer.symbols.ranges)[0] < 0:
                index = call("where", call("lt", index, 0), index + size, index)
            own, offset = view.place.offset, parent.place.offset + index * stride
            self._offsets.update((name, offset) for name in getattr(own, "symbols", ()) if own == symbol(name))
            view.__dict__["place"] = replace(view.place, offset=offset)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, raw: Any) -> Any:
        """The values of names as of now, all else as it is."""
        if isinstance(raw, tuple):
            return tuple(map(self.read, raw))
        if isinstance(raw, Name):
            raw = raw.view
        return self.value(raw) if isinstance(raw, View) else raw

    def value(self, view: View) -> Value:
        """What a view shows as of now."""
        if view.value is None or view.valid != view.memory.writes:
            made = self._again(view)
            view.value, view.valid = made, view.memory.writes
        assert view.value is not None
        return view.value

    def _again(self, view: View) -> Value:
        parent, recipe = view.parent, view.recipe
        if parent is not None and parent.kind == view.kind and between(parent.place, view.place) == ("same", ()):
            return self.value(parent)
        if recipe is not None and "storage_offset" not in recipe.schema.names:
            args = {n: self.read(a) for n, a in recipe.args.items()}
            outputs = self.importer.again(recipe.node, recipe.schema, args)
            for place, other in recipe.made.items():
                if other.valid != other.memory.writes:
                    other.value, other.valid = outputs[place], other.memory.writes
            return outputs[next(p for p, v in recipe.made.items() if v is view)]
        root = self._root(view.memory)
        if between(root.place, view.place) is None or root.type.dtype.bits != view.type.dtype.bits:
            root = self._dense(view.memory)
        whole, part = ((v.type, v.place, v.seen.flags) for v in (root, view))
        return self.scatters.read(whole, part, self.value(root))

    def by_place(self, seen: Seen) -> Value:
        """A view of memory that is there, taken by where it lies."""
        return self._again(self._view(seen, None, None, None))

    def results(self, raw: Any) -> Any:
        """The values of what the program hands out; results that share written memory are all taken from its root."""
        names = list(names_in(raw))
        given = {id(v.memory) for v in self.given.values()}
        for name in names:
            memory = name.view.memory
            shared = id(memory) in given or sum(n.view.memory is memory for n in names) > 1
            view: View | None = name.view
            while memory.writes and shared and view is not None and view is not memory.root:
                view.valid, view = -1, view.parent
        return self.read(raw)

    # -- writing ---------------------------------------------------------------------------------------------------

    def operator(self, node: FxNode, schema: OpSchema, outcome: Outcome) -> Any:
        """An op that writes: what it computes, put into what it writes to; its results as names."""
        bound = {n: self.importer.raw(a) for n, a in schema.bind(node.args, node.kwargs).items()}
        targets = list(names_in(tuple(bound[n] for n in schema.writes)))
        fresh: Sequence[Value] = ()
        if schema.moves:
            self._move(node, schema, bound, targets, outcome)
        elif len({t.view.memory for t in targets}) < len(targets) and not outcome.fresh:
            for i in range(len(targets)):  # each of a list that lie in one memory finds what those before it wrote
                alone = Outcome((), outcome.written[i : i + 1], outcome.computed[i : i + 1])
                self._write(node, schema, self._one(bound, i, len(targets), node), targets[i : i + 1], alone)
        else:
            fresh = self._write(node, schema, bound, targets, outcome)
        left = iter(fresh)
        own = {id(s.tensor): t for s, t in zip(outcome.written, targets, strict=True)}

        def each(seen: Any) -> Any:
            if isinstance(seen, tuple):
                return tuple(map(each, seen))
            if schema.in_place:  # a custom op's shape rule need not return its argument itself
                return targets[0]
            return None if seen is None else own.get(id(seen.tensor)) or self.name(seen, next(left))

        return each(outcome.result)

    def _write(
        self, node: FxNode, schema: OpSchema, bound: Mapping[str, Any], targets: Sequence[Name], outcome: Outcome
    ) -> Sequence[Value]:
        """What the op writes, put in its place; its own results."""
        fresh, contents = self._computed(node, schema, bound, outcome)
        for target, seen, content in zip(targets, outcome.written, contents, strict=True):
            if content is None:
                continue
            if content.type.shape != target.view.type.shape:
                self._resized(node, target, seen, content)
            else:
                self.write(target, content, node)
        return fresh

    def _one(self, bound: Mapping[str, Any], i: int, count: int, node: FxNode) -> dict[str, Any]:
        """The arguments of a `_foreach_` op for one tensor of its list."""
        if not str(node.target).startswith("aten._foreach_") or isinstance(bound.get("scalars"), Name):
            raise CaptureError(
                f"{node.target} writes to several tensors that share memory, in an order that its schema does not "
                f"tell; copy them first\n  at {origin_of(node)}"
            )
        return {n: a[i : i + 1] if isinstance(a, tuple) and len(a) == count else a for n, a in bound.items()}

    def _computed(
        self, node: FxNode, schema: OpSchema, bound: Mapping[str, Any], outcome: Outcome
    ) -> tuple[Sequence[Value], Sequence[Value | None]]:
        """The op's own results, and what it writes, in the types and the order in memory of what it is written to."""
        args = {n: self.read(a) for n, a in bound.items()}
        convert = self.importer.symbols.convert
        types = [TensorType(DTYPES[s.dtype], tuple(map(convert, s.shape))) for s in outcome.written]
        contents: list[Value | None]
        if _copies(schema) and args["src"].type == types[0] and not self.importer.is_handed_out(node):
            fresh: Sequence[Value] = []
            contents = [args["src"]]
            strides = [bound["src"].view.place.strides]
        else:
            fresh, contents = self._node(node, schema, args, types, outcome)
            strides = [tuple(map(convert, s.strides)) for s in outcome.computed[len(fresh) :]]
        for i, content in enumerate(contents):
            if content is not None and content.type.dtype is not types[i].dtype:
                content = contents[i] = self.importer.cast(content, types[i].dtype)
            if content is not None and strides:
                contents[i] = self.scatters.laid(content, strides[i], self._place(outcome.written[i]))
        return fresh, contents

    def _node(
        self, node: FxNode, schema: OpSchema, args: dict[str, Any], types: Sequence[TensorType], outcome: Outcome
    ) -> tuple[list[Value], list[Value | None]]:
        """An op that writes, as a node that does not: its own results, and the contents of these types that it writes;
        None where it writes what is there."""
        twin, importer = schema.functional, self.importer
        own, made = [importer.type_of(s.tensor) for s in outcome.fresh], list(types)
        if twin is not None:
            args = importer.typed(node, twin.schema, twin.bind(args, types[0].dtype if types else None))
            if args.get(DROPOUTS.get(twin.schema.op, "")) is False:
                return [], [None] * len(types)
            made = [t.with_dtype(DTYPES[c.dtype]) for t, c in zip(types, outcome.computed[len(own) :], strict=True)]
        turn, self._turns[node] = self._turns[node], self._turns[node] + 1
        name = f"{node.name}_turn{turn}" if turn else node.name
        names = [name, *(self.importer.part_name(name, i) for i in range(1, len(own) + len(made)))]
        outputs = [Value(n, t) for n, t in zip(names, (*own, *made), strict=True)]
        importer.append(node, twin.schema if twin else schema, args, outputs)
        return outputs[: len(own)], list(outputs[len(own) :])

    def _place(self, seen: Seen) -> Place:
        return View(Memory(), seen, self.importer.symbols).place

    def _move(self, node: FxNode, schema: OpSchema, bound: Any, targets: Sequence[Name], outcome: Outcome) -> None:
        for target, seen in zip(targets, outcome.written, strict=True):
            view = target.view
            twin = schema.functional
            if seen.memory == view.seen.memory and self._place(seen) == view.place:
                if twin is not None:
                    self._stays(node, twin, bound, view)
                continue
            parent = recipe = None
            if twin is not None and twin.schema.views and seen.memory == view.seen.memory:
                parent, recipe = view, Recipe(node, twin.schema, views_in(twin.bind(bound, None)))
            elif self.number(self.importer.symbols.convert(seen.size)) > self.number(self._room(seen)):
                raise CaptureError(f"{schema.op} enlarges a tensor by elements without values\n  at {origin_of(node)}")
            target.view = self._view(seen, None, parent, recipe)
            if recipe is not None:
                recipe.made[0] = target.view

    def _stays(self, node: FxNode, twin: Twin, bound: Any, view: View) -> None:
        """`squeeze_` left the tensor as it was: the graph holds where it does."""
        args = {n: self.read(a) for n, a in twin.bind(bound, None).items()}
        if are_open(twin.schema.op, args):
            view.value = self.importer.required(twin.schema.op, args, node)["self"]
            view.valid = view.memory.writes

    def _room(self, seen: Seen) -> Dim:
        """The number of elements that the memory holds so far."""
        memory = self._memories.get(seen.memory)
        tops = memory.tops if memory is not None else []
        rooms: list[Dim] = [t.place.offset + t.place.numel for t in tops]
        return max(rooms, key=self.number, default=0)

    def _resized(self, node: FxNode, target: Name, seen: Seen, content: Value) -> None:
        """`out=` was an empty tensor: it is what was computed from here on."""
        if target.view.place.numel != 0 or target.view in self.given.values():
            raise CaptureError(
                f"{node.target} changes the size of the tensor that it writes to; give one of the right size, or an "
                f"empty one\n  at {origin_of(node)}"
            )
        self._memories[seen.memory] = Memory()
        target.view = self._view(seen, content, None, None)

    def write(self, target: Name, value: Value, node: FxNode) -> None:
        """The tensor now holds `value`: the views that it was made of take it in."""
        view, memory = target.view, target.view.memory
        root, self.importer.line = self._root(memory), replace(origin_of(node), overload="")
        if overlaps(view.place, self.number) and not self._is_uniform(value):
            raise CaptureError(
                f"{node.target} writes to a tensor whose elements share memory (expand, overlapping windows), which "
                f"torch leaves undefined; copy it first\n  at {origin_of(node)}"
            )
        new = [(view, value)]
        while view is not root:
            parent = view.parent or root
            while overlaps(parent.place, self.number) and parent is not root:
                parent = parent.parent or root
            made = self._put(parent, view, value)
            if made is None:
                parent = root = self._dense(memory)
                made = self._put(parent, view, value, one_by_one=True)
            if made is None:
                raise CaptureError(
                    f"{node.target} writes {value.type.dtype} into memory of {parent.type.dtype}, which no op undoes\n"
                    f"  at {origin_of(node)}"
                )
            view, value = parent, made
            new.append((view, value))
        memory.writes += 1
        for view, value in new:
            view.value, view.valid = value, memory.writes

    def _is_uniform(self, value: Value) -> bool:
        node = next((n for n in reversed(self.importer.nodes) if value in n.outputs), None)
        if node is not None and node.op == "ir::cast":
            return self._is_uniform(node.args["self"])
        return node is not None and node.op in ("aten::fill", "aten::zero")

    def _put(self, parent: View, view: View, value: Value, one_by_one: bool = False) -> Value | None:
        return self.scatters.put(
            (parent.type, parent.place, parent.seen.flags), (view.type, view.place, view.seen.flags), value,
            lambda: self.value(parent), one_by_one,
        )  # fmt: skip

    def updates(self) -> Iterator[tuple[FxNode, Value]]:
        """What was handed in and has new contents.

        Raises:
            CaptureError: it has other sizes, which no caller can be given.
        """
        for node, view in self.given.items():
            moved = self._names[id(view.seen.tensor)].view
            if moved is not view and (moved.place != view.place or moved.memory is not view.memory):
                raise CaptureError(f"the model changes the sizes or strides of {node.name} in place; make a new tensor")
            if view.memory.writes:
                yield node, self.value(view)

    # -- roots -----------------------------------------------------------------------------------------------------

    def _root(self, memory: Memory) -> View:
        """The view that all others of the memory lie in."""
        if memory.root is None:
            first, *others = memory.tops
            if not others:
                memory.root = first
            else:
                whole = (t for t in memory.tops if self.importer.symbols.convert(t.seen.size) == t.place.numel)
                memory.root = next((t for t in whole if dense_order(t.place, self.number)), None) or self._flat(memory)
        return memory.root

    def _dense(self, memory: Memory) -> View:
        """The root as one that lies in rows without gaps."""
        root = self._root(memory)
        if dense_order(root.place, self.number) is None:
            memory.tops = [root]
            root = memory.root = self._flat(memory)
        return root

    def _flat(self, memory: Memory) -> View:
        """A tensor for all of the memory, with what is known of it in its place."""
        seen = memory.tops[0].seen
        size = self.importer.symbols.convert(seen.size)
        if any(t.kind != memory.tops[0].kind for t in memory.tops):
            raise CaptureError("tensors of several element types share one memory that the model writes to")
        flat = View(memory, seen, self.importer.symbols, valid=memory.writes)
        flat.place = Place((size,), (1,))
        flat.value = self.scatters.zeros(flat.type)
        for top in memory.tops:
            flat.value = self.scatters.scatter(flat.place, top.place, flat.value, self.value(top))
            top.parent = flat
        return flat


def _copies(schema: OpSchema) -> bool:
    return schema.functional is not None and schema.functional.schema.op == "aten::copy"
