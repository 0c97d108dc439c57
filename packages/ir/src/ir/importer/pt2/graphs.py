"""A graph of a .pt2 file as torch.fx nodes that describe their tensors; no code is made of it, and none runs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node as FxNode

from ir.errors import CaptureError
from ir.importer.pt2 import operators
from ir.importer.pt2.values import PLAIN, described, identifier, number, text, union
from ir.importer.tensor_meta import Described, Tensors
from ir.importer.torch_api import HigherOrderOperator, OpOverload, schema_of

_DEEPEST = 32  # sub-graphs inside of sub-graphs
_LONGEST_POWER = 64
_VALUES = ("sym_int_values", "sym_float_values", "sym_bool_values")
_NAMED = {"as_tensor": "name", "as_sym_int": "as_name", "as_sym_float": "as_name", "as_sym_bool": "as_name"}


class FileGraph(torch.nn.Module):
    """A graph and the sub-graphs that it calls, which its `get_attr` nodes name; a call interprets the nodes."""

    def __init__(self, graph: FxGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *args: Any) -> Any:
        return torch.fx.Interpreter(self, garbage_collect_values=False).run(*args, enable_io_processing=False)


def read_graph(document: Any, names: Sequence[str | None] = (), depth: int = 0) -> FileGraph:
    """The graph; `names` are those of inputs that are constants and have none of their own.

    Raises:
        CaptureError: a node that calls no operator, or is given something else than the operator takes.
    """
    if depth > _DEEPEST:
        raise CaptureError(f"graphs inside of graphs, more than {_DEEPEST} deep")
    return _Reader(document, depth).read(names)


class _Reader:
    """One graph: the values that it has defined so far, by name."""

    def __init__(self, document: Any, depth: int) -> None:
        self.document = document
        self.depth = depth
        self.graph = FxGraph()
        self.module = FileGraph(self.graph)
        self.nodes: dict[str, FxNode] = {}
        self.metas: dict[str, Any] = {n: number(d) for group in _VALUES for n, d in document.get(group, {}).items()}
        self.tensors = document["tensor_values"]
        if document.get("custom_obj_values"):
            raise CaptureError("the program calls objects of TorchScript classes, which have no form in the IR")

    def read(self, names: Sequence[str | None]) -> FileGraph:
        for i, given in enumerate(self.document["inputs"]):
            tag, value = union(given)
            if tag in ("as_tensor", "as_sym_int"):
                node = self.graph.placeholder(self._free(value[_NAMED[tag]]))
                self._define(node, value[_NAMED[tag]])
            elif tag in ("as_int", "as_float", "as_bool", "as_none", "as_string"):
                name = names[i] if i < len(names) else None
                node = self.graph.placeholder(identifier(name or f"arg{i}"))
                node.meta["val"] = PLAIN[tag](value)
            else:
                raise CaptureError(f"an input of the program is of a kind ({tag}) that has no form in the IR")
        for call in self.document["nodes"]:
            try:
                self._call(call)
            except CaptureError as error:
                raise CaptureError(f"{error}, at the node {call.get('name')!r:.80}") from error
        outputs = [self._argument(*union(o)) for o in self.document["outputs"]]
        single = self.document.get("is_single_tensor_return", False)
        if single and len(outputs) != 1:
            raise CaptureError("a graph that returns one tensor has other results")
        self.graph.output(outputs[0] if single else tuple(outputs))
        for node in self.graph.find_nodes(op="call_function", target=torch.ops.aten.lstm.input):
            _without_doubled_axis(node)
        return self.module

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _call(self, call: Any) -> None:
        target = operators.resolve(text(call["target"]))
        outputs = [union(o) for o in call["outputs"]]
        kwargs: dict[str, Any] = {}
        if isinstance(target, OpOverload):
            _fit(target, outputs)
            args, kwargs = operators.bind(target, call["inputs"], self._argument)
        elif isinstance(target, HigherOrderOperator):
            for i in call["inputs"]:
                if i.get("kind") not in (None, 1) and i["name"] != "":
                    kwargs[identifier(i["name"])] = self._argument(*union(i["arg"]))
            args = tuple(self._argument(*union(i["arg"])) for i in call["inputs"] if i["name"] not in kwargs)
        else:
            args = tuple(self._argument(*union(i["arg"])) for i in call["inputs"])
            _small(target, args)
        name = call.get("name")
        node = self.graph.create_node("call_function", target, args, kwargs, identifier(name) if name else None)
        node.meta.update(_origin(call["metadata"]))
        self._results(node, outputs, call)

    def _results(self, node: FxNode, outputs: list[tuple[str, Any]], call: Any) -> None:
        """Give the results their names; of several, each is taken out by a node of its own."""
        if len(outputs) == 1:
            tag, value = outputs[0]
            lone = isinstance(node.target, HigherOrderOperator) and call.get("is_hop_single_tensor_return") is False
            if tag == "as_none":
                node.meta["val"] = None
                return
            if tag in _NAMED and not lone:
                node.name = self._free(value[_NAMED[tag]])
                self._define(node, node.name)
                return
        if outputs:
            parts = outputs[0][1] if len(outputs) == 1 and outputs[0][0] == "as_tensors" else outputs
            node.meta["val"] = tuple(self._part(node, i, p) for i, p in enumerate(parts))

    def _part(self, node: FxNode, index: int, part: Any) -> Any:
        tag, value = ("as_tensor", part) if isinstance(part, dict) else part
        if tag == "as_none":
            return None
        if tag == "as_tensors":
            nested = self._taken(node, index, None)
            nested.meta["val"] = [self._part(nested, i, p) for i, p in enumerate(value)]
            return nested.meta["val"]
        if tag not in _NAMED:
            raise CaptureError(f"a result of a kind ({tag}) that has no form in the IR")
        name = self._free(value[_NAMED[tag]])
        taken = self._taken(node, index, name)
        taken.name = name
        self._define(taken, name)
        return taken.meta["val"]

    def _taken(self, node: FxNode, index: int, name: str | None) -> FxNode:
        taken = self.graph.create_node("call_function", operator.getitem, (node, index), name=name)
        taken.meta.update(node.meta)
        taken.meta.pop("val", None)
        return taken

    def _free(self, name: Any) -> str:
        if identifier(name) in self.nodes:
            raise CaptureError(f"two values have the name {name}")
        return str(name)

    def _define(self, node: FxNode, name: str) -> None:
        node.name = name
        self.nodes[name] = node
        if name in self.tensors:
            node.meta["val"] = described(self.tensors[name])
        elif name in self.metas:
            node.meta["val"] = self.metas[name]
        else:
            raise CaptureError(f"the file does not describe the value {name}")

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _argument(self, tag: str, value: Any) -> Any:
        if tag in PLAIN:
            return PLAIN[tag](value)
        if tag == "as_tensor":
            return self._tensor(value)
        if tag == "as_tensors":
            return [self._tensor(v) for v in value]
        if tag == "as_nested_tensors":
            return [[self._tensor(v) for v in inner] for inner in value]
        if tag == "as_optional_tensor":
            return self._argument(*union(value))
        if tag == "as_optional_tensors":
            return [self._argument(*union(v)) for v in value]
        if tag in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            return self._number(value)
        if tag in ("as_sym_ints", "as_sym_floats", "as_sym_bools"):
            return [self._number(v) for v in value]
        if tag == "as_string_to_argument":
            return {text(k): self._argument(*union(v)) for k, v in value.items()}
        if tag == "as_graph":
            return self._graph(identifier(value["name"]), value["graph"])
        if tag == "as_operator":
            return operators.resolve(text(value))
        raise CaptureError(f"an argument of a kind ({tag}) that has no form in the IR")

    def _named(self, name: Any) -> FxNode:
        node = self.nodes.get(name)
        if node is None:
            raise CaptureError(f"{name!r:.80} is read before anything makes it")
        return node

    def _tensor(self, value: Any) -> FxNode:
        node = self._named(value["name"])
        if not isinstance(node.meta.get("val"), Tensors):
            raise CaptureError(f"{node.name} is no tensor and is read as one")
        return node

    def _number(self, value: Any) -> Any:
        tag, content = union(value)
        if tag != "as_name":
            return PLAIN[tag](content)
        node = self._named(content)
        if isinstance(node.meta.get("val"), Tensors):
            raise CaptureError(f"{node.name} is a tensor and is read as a number")
        return node

    def _graph(self, name: str, document: Any) -> FxNode:
        if hasattr(self.module, name):
            raise CaptureError(f"two sub-graphs have the name {name}")
        self.module.add_module(name, read_graph(document, depth=self.depth + 1))
        return self.graph.create_node("get_attr", name, name=name)


def _without_doubled_axis(node: FxNode) -> None:
    """Describe the states that an LSTM leaves: torch before 2.13 notes an axis too many, [layers, 1, batch, hidden].

    Raises:
        CaptureError: more is computed of them, which has wrong shapes in the file as well.
    """
    parts: dict[Any, Any] = dict(enumerate(node.meta["val"]))
    for taken in node.users:
        said = taken.meta["val"]
        if not isinstance(said, Described) or len(said.shape) != 4 or said.shape[1] != 1:
            continue
        if user := next((u for u in taken.users if u.op != "output"), None):
            raise CaptureError(
                f"torch before 2.13 wrote wrong shapes of an LSTM's states, and of {user.name}, which is computed of "
                "them: save the program with torch 2.13 or newer, or capture the model itself"
            )
        shape, strides = ((x[0], *x[2:]) for x in (said.shape, said.strides))
        parts[taken.args[1]] = taken.meta["val"] = replace(said, shape=shape, strides=strides)
    node.meta["val"] = tuple(parts.values())


def _fit(target: OpOverload, outputs: list[tuple[str, Any]]) -> None:
    """That the results are as many, and of the kinds, as the operator's schema has.

    Raises:
        CaptureError: they are not.
    """
    returns = schema_of(target).returns
    kinds = [str(r.real_type) for r in returns]
    tags = [tag for tag, _ in outputs]
    takes = [
        ("as_tensors",) if "List" in k else ("as_tensor", "as_none") if "Tensor" in k
        else ("as_sym_int", "as_sym_float", "as_sym_bool", "as_none") for k in kinds
    ]  # fmt: skip
    if len(tags) != len(kinds) or any(t not in allowed for t, allowed in zip(tags, takes, strict=True)):
        raise CaptureError(f"a node calls {target} for {', '.join(tags) or 'nothing'}, and it gives {', '.join(kinds)}")


def _small(target: Any, args: Sequence[Any]) -> None:
    """Refuse powers and shifts that no computer finishes."""
    if target in (operator.pow, operator.lshift) and any(
        isinstance(a, int | float) and abs(a) > _LONGEST_POWER for a in args[1:]
    ):
        raise CaptureError(f"{target.__name__} of {args!r:.80} is no size")


def _origin(metadata: Any) -> dict[str, Any]:
    """A node's source line and the modules that it lies in, as torch notes them in a live graph."""
    found: dict[str, Any] = {"nn_module_stack": {}}
    if metadata.get("stack_trace"):
        found["stack_trace"] = text(metadata["stack_trace"])
    if metadata.get("nn_module_stack"):
        found["nn_module_stack"] = _modules(text(metadata["nn_module_stack"]))
    if metadata.get("torch_fn"):
        found["torch_fn"] = tuple(text(metadata["torch_fn"]).split(";"))
    return found


@lru_cache(maxsize=4096)
def _modules(stack: str) -> dict[str, tuple[str, str]]:
    """`key,path,class` of each module, `;` between them; commas in brackets belong to a path."""
    found = {}
    for entry in stack.split(";"):
        parts, start, depth = [], 0, 0
        for i, c in enumerate(entry):
            depth += (c in "[(") - (c in ")]")
            if c == "," and not depth:
                parts.append(entry[start:i])
                start = i + 1
        parts.append(entry[start:])
        if len(parts) != 3:
            raise CaptureError(f"{entry!r:.80} stands where a module is named")
        found[parts[0]] = parts[1], parts[2]
    return found
