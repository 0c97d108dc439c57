"""A small failing program as Python: torch beside the runtime's own calls, or torch and `ir.export`."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ir.debug.inside import settled
from ir.debug.search import Verdict
from ir.debug.shrink import Sample, seed_of, seeded_text
from ir.errors import ExportError
from ir.files import staged
from ir.graph import Graph, Node, Value, leaves
from ir.importer.bodies import SETTINGS
from ir.importer.custom_ops import defining_module
from ir.importer.schema import overload_of
from ir.importer.torch_api import schema_of
from ir.importer.weights import TorchWeight
from ir.lower import lower
from ir.registry import Registry
from ir.target import Target
from ir.types import DType
from ir.verify import DEFAULT_TOLERANCE, TOLERANCES

_LITERAL = 64  # elements up to which an array is written out
_WIDTH = 118

_OPERANDS = {  # of torch's loops, in the order of the op: the function, tensors, and what each step is given beside
    "higher_order::scan": ("combine_graph", "init", "xs", "additional_inputs"),
    "higher_order::associative_scan": ("combine_graph", "xs", "additional_inputs"),
    "higher_order::map_impl": ("graph", "xs", "pos_args"),
}


def write_scripts(
    sample: Sample,
    target: Target,
    registry: Registry,
    verdict: Verdict,
    path: str | Path | None,
    limit: float | None = None,
    *,
    runtime: bool = True,
) -> tuple[str, str, tuple[Path, ...]]:
    """Both scripts as text, and the files that were written; arrays that are neither random nor small go to a .npz.

    Without `runtime` the first is empty: making the runtime's own calls may end the process.
    """
    text = _Script(sample, target, registry, verdict, limit, path)
    own, by_ir = text.of_runtime() if runtime else "", text.of_ir()
    if path is None:
        return own, by_ir, ()
    place = Path(path)
    files = [(place, own), (place.with_name(f"{place.stem}_ir.py"), by_ir)]
    files = [(file, content) for file, content in files if content]
    for file, content in files:
        with staged(file) as temporary:
            temporary.write_text(content)
    written = [f for f, _ in files]
    if text.arrays:
        with staged(place.with_name(text.file)) as temporary:
            np.savez(temporary, **text.arrays)  # type: ignore[arg-type]
        written.append(place.with_name(text.file))
    return own, by_ir, tuple(written)


class _Script:
    """The text of one sample."""

    def __init__(
        self,
        sample: Sample,
        target: Target,
        registry: Registry,
        verdict: Verdict,
        limit: float | None,
        path: str | Path | None,
    ) -> None:
        self.sample, self.target, self.registry, self.verdict = sample, target, registry, verdict
        self.limit = limit  # what `compared` was told
        self.file = "arrays.npz" if path is None else f"{Path(path).stem}.npz"
        self.bodies: dict[Node, Graph] = {}  # of custom ops that no import defines
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.taken: set[str] = set()
        self.names: dict[Value, str] = {}
        values = [*sample.tensors, *_made_in(sample.graph)]
        for value in values:
            self.names[value] = _identifier(value.name.removesuffix("_given"), self.taken)
        self.known: list[tuple[str, np.ndarray[Any, Any]]] = []
        self.tensors = [f"{self.names[v]} = {self._tensor(v, t)}" for v, t in sample.tensors.items()]

    # -- the two forms ---------------------------------------------------------------------------------------------

    def of_runtime(self) -> str:
        """With torch and the runtime alone; empty where nothing was made to run, or it has no such form."""
        if self.verdict.kind == "export":
            return ""
        try:
            artifact = lower(self.sample.graph, self.target, self.registry)
            imports, lines = self.target.script(artifact, self._literal)
            imports = [*imports, *self._imports(own=False)]
            model = list(self._model())
        except ExportError:
            return ""
        given = ", ".join(self.names[v] for v in self.sample.graph.inputs)
        check = [f"got, wanted = run({given}), model({given})", *self._comparison()]
        return self._joined(["torch", *imports], [*self.tensors, *model, *lines, *check])

    def of_ir(self) -> str:
        """With `ir.export(..., verify=True)`; empty where torch's functions have another form than the graph."""
        try:
            imports, model = self._imports(own=True), list(self._model())
        except ExportError:
            return ""
        given = ", ".join(self.names[v] for v in self.sample.graph.inputs)
        comma = "," if len(self.sample.graph.inputs) == 1 else ""
        found = self._plugins()
        plugins = f", plugins={found}" if found else ""
        call = f'ir.export(model, ({given}{comma}), target="{self.target.name}", verify=True{plugins})'
        return self._joined(["torch", "ir", *imports], [*self.tensors, *model, call])

    def _plugins(self) -> list[str]:
        """The modules of the plugins whose handlers serve the ops that are left."""
        served = (self.registry.lookup(n.op, n.overload, self.target.version) for n in self.sample.graph.nodes)
        return list(dict.fromkeys(h.source for h in served if h is not None and h.layer == "plugin"))

    def _imports(self, own: bool) -> list[str]:
        """The modules that define the custom ops which are left; for scripts without a user's `own` modules, and where
        there is none, these ops are what their bodies compute."""
        found = []
        self.bodies = {}
        for node in self.sample.graph.nodes:
            module = "" if _is_torchs(node.op) else defining_module(node.op, own)
            body = None if _is_torchs(node.op) or module else self.sample.graph.context.body(node)
            if body is not None:
                self.bodies[node] = self._named(settled(body.graph, _sizes(body.graph, node)))
            elif not _is_torchs(node.op) and not module:
                raise ExportError(f"no module is known that defines {node.op}, and it has no body")
            found += [module] if module else []
        return list(dict.fromkeys(found))

    def _named(self, body: Graph) -> Graph:
        """A body whose values all have names in the script."""
        if body.weights:
            raise ExportError("the body of a custom op holds tensors of its own")
        for value in (*body.inputs, *_made_in(body)):
            self.names.setdefault(value, _identifier(value.name, self.taken))
        return body

    def _joined(self, imports: list[str], lines: list[str]) -> str:
        names = sorted({*imports, *(["numpy as np"] if any("np." in x for x in lines) else [])})
        return "\n".join([*self._head(), f"import {', '.join(names)}", *lines, ""])

    def _head(self) -> Iterator[str]:
        said = re.sub(r"\s+", " ", self.verdict.text).strip()[:200]
        versions = [f"{p} {v}" for p in ("torch", *self.target.runtimes) if (v := _version(p))]
        yield f"# {', '.join(versions)}, Python {platform.python_version()}, {platform.machine()}"
        yield f"# {self.verdict.kind}: {said}"[:_WIDTH]

    def _comparison(self) -> Iterator[str]:
        yield "for g, w in zip(got, wanted, strict=True):"
        g = "torch.as_tensor(g)"
        slack = {_tolerance(self.sample.graph.outputs[i].type.dtype) for i in range(len(self.sample.graph.outputs))}
        (rtol, atol), *_ = sorted(slack, reverse=True)
        if self.limit is not None:
            rtol, atol = 0, self.limit
        elif (rtol, atol) == (0, 0):
            yield f"    torch.testing.assert_close({g}, w, rtol=0, atol=0)"
            return
        yield "    scale = torch.where(w.isfinite(), w, 0).abs().max().clamp(min=1e-3).item()"
        yield f"    torch.testing.assert_close({g}, w, rtol={rtol}, atol={atol} * scale, equal_nan=True)"

    # -- torch -----------------------------------------------------------------------------------------------------

    def _model(self) -> Iterator[str]:
        yield from self._function("model", self.sample.graph)

    def _function(self, name: str, graph: Graph) -> Iterator[str]:
        """A graph as a function, and before the node that calls it each sub-graph as one inside."""
        yield f"def {name}({', '.join(self.names[v] for v in graph.inputs)}):"
        for node in graph.nodes:
            for key, inner in node.args.items():
                if isinstance(inner, Graph):
                    yield from (f"    {line}" for line in self._function(_function_name(node, key), inner))
            if node in self.bodies:
                yield from (f"    {line}" for line in self._function(_function_name(node, "body"), self.bodies[node]))
            made = ", ".join(self.names[v] for v in node.outputs)
            several = bool(node.graphs) or node.returns == "list" or node in self.bodies
            yield f"    {made}{',' if several and len(node.outputs) == 1 else ''} = {self._call(node)}"
        results = [self.names[v] for v in graph.outputs]
        yield f"    return {', '.join(results)}{',' if len(results) == 1 else ''}"

    def _call(self, node: Node) -> str:
        args = node.args
        if node in self.bodies:
            return f"{_function_name(node, 'body')}({', '.join(self.names[v] for v in node.inputs)})"
        if node.op == "ir::cast":
            return f"{self._text(args['self'])}.to({self._text(args['dtype'])})"
        if node.op == "ir::scalar":
            return f"torch.tensor({self._text(args['value'])}, dtype={self._text(args['dtype'])})"
        if node.op == "higher_order::cond":
            true, false = _function_name(node, "true_graph"), _function_name(node, "false_graph")
            return f"torch.cond({self._text(args['pred'])}, {true}, {false}, {self._text(args['operands'])})"
        if node.op == "higher_order::while_loop":
            return self._while(node)
        if node.op in _OPERANDS:
            return self._loop(node)
        overload = overload_of(node.op, node.origin.overload)
        if overload is None or node.graphs:
            raise ExportError(f"{node.op} holds graphs of its own, which a script does not say")
        schema = schema_of(overload).arguments
        plain = [a.name for a in schema if not a.kwarg_only]
        named = [a.name for a in schema if a.kwarg_only and a.name not in ("device", "layout", "pin_memory")]
        while plain and plain[-1] in node.defaults and node.defaults[plain[-1]] == args.get(plain[-1]):
            plain.pop()
        texts = [self._text(args[n]) for n in plain]
        texts += [f"{n}={self._text(args[n])}" for n in named if args.get(n) is not None]
        space, _, name = node.op.partition("::")
        return f"torch.ops.{space}.{name}.{node.origin.overload or 'default'}({', '.join(texts)})"

    def _while(self, node: Node) -> str:
        more = "".join(f", {self._text(a)}" for a in leaves(node.args["additional_inputs"]))
        test, body = (f"{_function_name(node, key)}(*c{more})" for key in ("cond_graph", "body_graph"))
        carried = f"tuple({self._text(node.args['carried_inputs'])})"
        return f"torch._higher_order_ops.while_loop(lambda *c: {test}[0], lambda *c: {body}, {carried})"

    def _loop(self, node: Node) -> str:
        """A loop by torch's op, whose functions take and give flat lists of tensors, as those of the graph do."""
        function, *given, more = _OPERANDS[node.op]
        operands = "".join(f", {self._text(node.args[n])}" for n in given)
        name = node.op.partition("::")[2]
        more = f"tuple({self._text(node.args[more])})"
        return f"torch.ops.higher_order.{name}({_function_name(node, function)}{operands}, {more})"

    def _text(self, arg: Any) -> str:
        if isinstance(arg, Value):
            return self.names[arg]
        if isinstance(arg, tuple):
            return f"[{', '.join(map(self._text, arg))}]"
        if isinstance(arg, DType):
            return f"torch.{arg.name}"
        if isinstance(arg, str) and arg in SETTINGS:
            return f"torch.{arg}"
        if isinstance(arg, float) and arg - arg != 0:
            return f'float("{arg}")'
        return repr(arg)

    # -- tensors ---------------------------------------------------------------------------------------------------

    def _tensor(self, value: Value, tensor: Tensor) -> str:
        name = self.names[value]
        self.known.append((name, TorchWeight("", tensor).numpy()))
        if value.name in self.sample.seeded:
            return f"(torch.manual_seed({seed_of(value.name)}), {seeded_text(tensor)})[1]"
        if (flat := _constant(tensor)) is not None:
            return f"torch.full({list(tensor.shape)}, {self._text(flat)}, dtype={tensor.dtype})"
        if tensor.numel() <= _LITERAL:
            return f"torch.tensor({_numbers(tensor.tolist())}, dtype={tensor.dtype})"
        if tensor.dtype == torch.bfloat16:
            self.arrays[name] = tensor.float().numpy()
            return f'torch.from_numpy(np.load("{self.file}")["{name}"]).bfloat16()'
        self.arrays[name] = tensor.numpy()
        return f'torch.from_numpy(np.load("{self.file}")["{name}"])'

    def _literal(self, array: np.ndarray[Any, Any]) -> str:
        """An expression for an array of the artifact: one of the tensors, numbers, or what the file holds."""
        for name, known in self.known:
            for text, view in ((f"{name}.numpy()", known), (f"{name}.numpy().T", known.T)):
                if view.shape == array.shape and view.dtype == array.dtype and view.tobytes() == array.tobytes():
                    return text if known.dtype.name != "bfloat16" else f"{name}.float().numpy()"
                if known.size == array.size and known.dtype == array.dtype and view.tobytes() == array.tobytes():
                    return f"{text}.reshape({list(array.shape)})"
        if array.size <= _LITERAL:
            return f"np.array({_numbers(array.tolist())}, np.{array.dtype.name.replace('bool', 'bool_')})"
        name = f"array_{len(self.arrays)}"
        self.arrays[name] = array
        return f'np.load("{self.file}")["{name}"]'


def _made_in(graph: Graph) -> Iterator[Value]:
    """The values that nodes make, and those of sub-graphs."""
    for node in graph.nodes:
        for inner in node.graphs:
            yield from (*inner.inputs, *_made_in(inner))
        yield from node.outputs


def _is_torchs(op: str) -> bool:
    return op.startswith(("aten::", "prims::", "higher_order::", "ir::"))


def _sizes(body: Graph, node: Node) -> dict[str, int]:
    """What the symbols of a body are for operands of fixed sizes."""
    given = dict(zip(body.inputs, node.inputs, strict=True))
    return {
        name: (given[s.value].type.shape[s.axis] - s.offset) // s.scale  # type: ignore[misc]
        for name, s in body.sources.items()
        if s.value in given and s.axis is not None
    }


def _function_name(node: Node, key: str) -> str:
    return f"{_identifier(node.name, set())}_{key}"


def _tolerance(dtype: DType) -> tuple[float, float]:
    if not (dtype.is_float or dtype.is_complex):
        return 0, 0
    return TOLERANCES.get(dtype.name, DEFAULT_TOLERANCE)


def _constant(tensor: Tensor) -> Any:
    """The one number that a tensor of several holds, None where there are others."""
    if tensor.numel() < 2 or tensor.is_complex() or not bool((tensor == tensor.flatten()[0]).all()):
        return None
    return tensor.flatten()[0].item()


def _numbers(nested: Any) -> str:
    text = repr(nested)
    for word in ("inf", "nan"):
        text = re.sub(rf"(?<![\w\"])(-?){word}\b", rf'float("\1{word}")', text)
    return text


def _identifier(name: str, taken: set[str]) -> str:
    made = re.sub(r"\W", "_", name)
    made = made if made.isidentifier() else f"x_{made}"
    while made in taken or made in ("torch", "np", "model", "run", "got", "wanted", "ir", "g", "w"):
        made += "_"
    taken.add(made)
    return made


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
