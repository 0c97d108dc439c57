"""A file from elsewhere, before onnxruntime has it: what would end or hold up this process while it is opened.

onnxruntime computes what depends on constants alone while it opens a file, where some of its kernels end the process:
the processor stops at the least integer divided by -1, at a window of no size. A file is opened by another process
first, unless all that is computed is known to end well. And each call of a function becomes the function's body.
Only the nodes, and tensors of few bytes, are read here, so that a file with gigabytes of weights costs no more.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from ir.errors import ExportError, RefusedError
from ir.files import opened
from onnx_backend.format.data_files import fields, locations, number_of, read

CALLS, DEPTH = 1 << 14, 200  # of functions: onnxruntime takes seconds for as many, its stack ends at some thousand
_STEPS = 1 << 20  # of nodes, over all calls of other constants
_SMALL = 1 << 20  # bytes of a tensor whose numbers are looked at
_FLOATS = {onnx.TensorProto.DataType.Value(n) for n in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")}
_KEEPS = {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Expand", "Concat"}
# whose kernels do no more than read, copy and calculate element by element, or say what is wrong with their operands
_HARMLESS = _KEEPS | {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Constant", "ConstantOfShape", "Cos", "CumSum", "DequantizeLinear",
    "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log",
    "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceSum", "Round", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Sqrt", "Sub", "Tanh", "Where", "Xor",
}  # fmt: skip
_RANK = 64
_ELEMENTS = 1 << 28  # of a constant that is made of a few bytes
_SECONDS, _A_SECOND = 60, 1 << 26  # that another process has to open a file, and the bytes for which it has one more
# the folder of this process goes off the path before anything is imported: what lies beside a file is not run
_OPEN = """
import sys
sys.path[:] = filter(None, sys.path)
import json, onnxruntime
path, libraries, entries = json.loads(sys.argv[1])
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
for library in libraries:
    options.register_custom_ops_library(library)
for entry in entries.items():
    options.add_session_config_entry(*entry)
onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
"""
Function: TypeAlias = "tuple[str, str, str]"
Known: TypeAlias = "Constant | None"  # None: computed only when the model runs


@dataclass(frozen=True, eq=False)
class Constant:
    """What is known of a value that onnxruntime computes at once; `tensor` where its numbers are known.

    `safe` are numbers among which is neither -1 nor the least of a type, `floating` those that are no integers.
    """

    tensor: onnx.TensorProto | None = None
    floating: bool = False
    safe: bool = False


_UNKNOWN = Constant()


def check(path: Path, libraries: Sequence[Path] = (), entries: Mapping[str, str] | None = None) -> None:
    """Refuse a file that onnxruntime does not survive, or whose functions it puts into each other without end.

    Args:
        path: the file.
        libraries: of kernels, which its nodes may want.
        entries: config entries of a session, by which it finds its weights.

    Raises:
        ExportError: there is no plain file.
        RefusedError: it is such a file.
    """
    try:
        with opened(path) as file:
            nodes, tensors, functions = _parts(file)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError:  # no protocol buffer: onnxruntime says so
        return
    _check_calls(path, nodes, functions)
    if _Folding(path, functions).is_doubtful(nodes, tensors):
        given = json.dumps([str(path), [str(library) for library in libraries], dict(entries or {})])
        _try(path, given, _SECONDS + _bytes(path, (entries or {}).values()) // _A_SECOND)


def _bytes(path: Path, folders: Iterable[str]) -> int:
    """Of the file, of those that it names, and of the folders in which it finds its weights."""
    with contextlib.suppress(OSError, ValueError):
        named = [path, *(path.parent / name for name in locations(path))]
        beside = [file for folder in folders if Path(folder).is_dir() for file in Path(folder).iterdir()]
        return sum(file.stat().st_size for file in {*named, *beside} if file.is_file())
    return path.stat().st_size


def _try(path: Path, given: str, limit: int) -> None:
    """Let another process open it; what it says of a file that it survives, it will say here."""
    try:
        done = subprocess.run([sys.executable, "-c", _OPEN, given], capture_output=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise RefusedError(
            f"{path}: onnxruntime computes the constants of this file for more than {limit} s"
        ) from error
    if done.returncode < 0:
        raise RefusedError(f"{path}: onnxruntime ends the process while it computes the constants of this file")


# -- reading -----------------------------------------------------------------------------------------------------------


def _parts(file: BinaryIO) -> tuple[list[onnx.NodeProto], dict[str, Constant], dict[Function, onnx.FunctionProto]]:
    """The nodes of the graph, its initializers, and the functions of the model."""
    end = file.seek(0, 2)
    graphs = list(fields(file, 0, end, number_of(onnx.ModelProto, "graph")))
    spans = [(s, e) for g in graphs for s, e in fields(file, *g, number_of(onnx.GraphProto, "node"))]
    nodes = [_parsed(onnx.NodeProto, file, span) for span in spans]
    stored = [s for g in graphs for s in fields(file, *g, number_of(onnx.GraphProto, "initializer"))]
    sparse = [s for g in graphs for s in fields(file, *g, number_of(onnx.GraphProto, "sparse_initializer"))]
    stored += [s for g in sparse for s in fields(file, *g, number_of(onnx.SparseTensorProto, "values"))]
    local = fields(file, 0, end, number_of(onnx.ModelProto, "functions"))
    functions = [_parsed(onnx.FunctionProto, file, span) for span in local]
    return nodes, dict(_initializer(file, s) for s in stored), {(f.domain, f.name, f.overload): f for f in functions}


def _parsed(kind: Any, file: BinaryIO, span: tuple[int, int]) -> Any:
    made = kind()
    try:
        made.ParseFromString(read(file, *span))
    except Exception as error:  # protobuf's DecodeError has no base but Exception
        raise ValueError(str(error)) from error
    return made


def _initializer(file: BinaryIO, span: tuple[int, int]) -> tuple[str, Constant]:
    if span[1] - span[0] <= _SMALL:
        tensor = _parsed(onnx.TensorProto, file, span)
        return tensor.name, _constant(tensor)
    names = [read(file, *s) for s in fields(file, *span, number_of(onnx.TensorProto, "name"))]
    return b"".join(names[-1:]).decode(errors="replace"), _UNKNOWN


def _constant(tensor: onnx.TensorProto) -> Constant:
    floating = tensor.data_type in _FLOATS
    known = not floating and tensor.data_location != onnx.TensorProto.EXTERNAL
    return Constant(tensor if known else None, floating)


# -- functions ---------------------------------------------------------------------------------------------------------


def _below(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _below(graph.node)


def _called(node: onnx.NodeProto) -> Function:
    return node.domain, node.op_type, node.overload


def _check_calls(path: Path, nodes: Sequence[onnx.NodeProto], functions: Mapping[Function, onnx.FunctionProto]) -> None:
    """Raises RefusedError where the calls are too many once each body stands in its place, or too deep."""
    calls = {key: [c for n in _below(f.node) if (c := _called(n)) in functions] for key, f in functions.items()}
    count: dict[Function, int] = {}
    depth: dict[Function, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            count[key] = 1 + sum(count[c] for c in calls[key])
            depth[key] = 1 + max((depth[c] for c in calls[key]), default=0)
    except CycleError as error:
        raise RefusedError(f"{path}: one of its functions calls itself") from error
    own = [c for n in _below(nodes) if (c := _called(n)) in functions]
    most = max(CALLS, 4 * (len(nodes) + sum(len(f.node) for f in functions.values())))  # of a large file more
    if sum(count[c] for c in own) > most or max((depth[c] for c in own), default=0) > DEPTH:
        raise RefusedError(
            f"{path}: its functions call each other more than {most} times, or {DEPTH} deep, and onnxruntime puts "
            "each body in the place of each call"
        )


# -- constants ---------------------------------------------------------------------------------------------------------


class _Folding:
    """What onnxruntime computes at once: the values that depend on constants alone, in the order of the nodes."""

    def __init__(self, path: Path, functions: Mapping[Function, onnx.FunctionProto]) -> None:
        self._path, self._functions = path, functions
        self._calls: dict[tuple[Function, tuple[Known, ...]], list[Known]] = {}
        self._left, self._doubtful = _STEPS, False

    def is_doubtful(self, nodes: Sequence[onnx.NodeProto], tensors: Mapping[str, Constant]) -> bool:
        """Whether something is computed that may end the process; raises RefusedError where that is known."""
        try:
            self._walk(nodes, tensors)
        except (_Long, RecursionError):
            return True
        return self._doubtful

    def _walk(self, nodes: Sequence[onnx.NodeProto], outer: Mapping[str, Constant]) -> Mapping[str, Constant]:
        """All that is known behind these nodes."""
        values = dict(outer)
        for node in nodes:
            self._left -= 1
            if self._left < 0:
                raise _Long
            operands = [values.get(name) for name in node.input if name]
            if _called(node) in self._functions:
                results = self._call(_called(node), tuple(values.get(name) for name in node.input))
            else:
                self._check(node, operands)
                for graph in _graphs(node):
                    self._walk(graph.node, values | {t.name: _constant(t) for t in graph.initializer})
                results = [_result(node, operands)] * len(node.output)
            values.update((n, r) for n, r in zip(node.output, results) if r is not None)
        return values

    def _call(self, key: Function, given: tuple[Known, ...]) -> list[Known]:
        """The results of a function of these arguments."""
        if (key, given) not in self._calls:
            function = self._functions[key]
            known = self._walk(function.node, {n: c for n, c in zip(function.input, given) if c is not None})
            self._calls[key, given] = [known.get(name) for name in function.output]
        return self._calls[key, given]

    def _check(self, node: onnx.NodeProto, operands: Sequence[Known]) -> None:
        what = f"{self._path}: {node.op_type} {node.name!r:.100}"
        if node.op_type in ("Conv", "ConvTranspose") and any(a.name == "group" and a.i < 1 for a in node.attribute):
            raise RefusedError(f"{what} has no groups, and onnxruntime divides by their number")
        known = [c for c in operands if c is not None]
        if len(known) < len(operands) or _graphs(node):  # computed as the model runs
            return
        own = node.domain in ("", "ai.onnx")
        if own and node.op_type in ("Div", "Mod") and len(known) == 2:
            self._check_division(what, node, known)
        elif not own or node.op_type not in _HARMLESS:
            self._doubtful = True
        elif node.op_type in ("Expand", "ConstantOfShape") and known:
            most = max(_ELEMENTS, self._path.stat().st_size)
            if _product(known[-1]) > most:
                raise RefusedError(f"{what} makes more than {most} constant elements, which onnxruntime makes at once")

    def _check_division(self, what: str, node: onnx.NodeProto, known: Sequence[Constant]) -> None:
        if known[0].floating or any(a.name == "fmod" and a.i for a in node.attribute):  # as floating numbers
            return
        least, minus = _where(known[0], _is_least), _where(known[1], _is_minus_one)
        if least is None or minus is None:
            both = [found for found in (least, minus) if found is not None and not found.any()]
            self._doubtful |= not both
        elif _meet(least, minus):
            raise RefusedError(f"{what} divides the least integer by -1, which ends the process")


class _Long(Exception):
    """The walk takes too many steps."""


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else ()), *a.graphs)]


def _numbers(constant: Constant) -> np.ndarray | None:
    if constant.tensor is None:
        return None
    try:
        return numpy_helper.to_array(constant.tensor)
    except Exception:  # whatever is said of a tensor that is none; onnxruntime refuses it
        return None


def _product(shape: Constant) -> int:
    """How many elements a shape has; 0 of one that is not known, or that onnxruntime takes for none."""
    numbers = _numbers(shape)
    known = numbers is not None and numbers.dtype.kind == "i" and numbers.size <= _RANK
    return math.prod(numbers.ravel().tolist()) if known and numbers is not None else 0


def _where(constant: Constant, is_so: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    """Where the numbers of a constant are so, None if they are not known."""
    numbers = _numbers(constant)
    return np.zeros((), bool) if constant.safe else None if numbers is None else is_so(numbers)


def _is_least(numbers: np.ndarray) -> np.ndarray:
    """Narrower integers are divided as 32 bits."""
    if numbers.dtype.kind != "i" or numbers.dtype.itemsize < 4:
        return np.zeros((), bool)
    return np.asarray(numbers == np.iinfo(numbers.dtype).min)


def _is_minus_one(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers == -1) if numbers.dtype.kind == "i" else np.zeros((), bool)


def _meet(least: np.ndarray, minus: np.ndarray) -> bool:
    try:
        return bool((least & minus).any())
    except ValueError:  # shapes that do not go together, which onnxruntime refuses
        return False


def _is_safe(constant: Constant) -> bool:
    least, minus = _where(constant, _is_least), _where(constant, _is_minus_one)
    return least is not None and minus is not None and not least.any() and not minus.any()


def _result(node: onnx.NodeProto, operands: Sequence[Known]) -> Known:
    """What is known of the results of a node."""
    if node.op_type in ("Shape", "Size"):  # of a size that is fixed it is a constant
        return Constant(safe=True)
    if node.op_type == "Constant":
        return next((_attribute(a) for a in node.attribute), _UNKNOWN)
    known = [c for c in operands if c is not None]
    if len(known) < len(operands):
        return None
    if node.op_type == "Cast" and known:
        return _cast(known[0], next((a.i for a in node.attribute if a.name == "to"), 0))
    if node.op_type == "Identity" and known:
        return known[0]
    if node.op_type == "ConstantOfShape":
        filled = next((_attribute(a) for a in node.attribute), Constant(floating=True))
        return Constant(floating=filled.floating, safe=_is_safe(filled))
    if not known or node.domain not in ("", "ai.onnx") or not _is_of_first_type(node.op_type):
        return _UNKNOWN
    sources = known if node.op_type == "Concat" else known[:1]
    return Constant(floating=known[0].floating, safe=node.op_type in _KEEPS and all(map(_is_safe, sources)))


@cache
def _is_of_first_type(op_type: str) -> bool:
    """Whether ONNX gives all results of this operator the element type of its first operand."""
    if not onnx.defs.has(op_type):
        return False
    schema = onnx.defs.get_schema(op_type)
    kinds = {(result.type_str, result.is_homogeneous) for result in schema.outputs}  # those of Scan have many types
    return len(schema.inputs) > 0 and kinds == {(schema.inputs[0].type_str, True)}


def _cast(source: Constant, to: int) -> Constant:
    numbers = _numbers(source)
    if to in _FLOATS or (source.safe and to == onnx.TensorProto.INT64):
        return Constant(floating=to in _FLOATS, safe=source.safe)
    if numbers is None or to not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return _UNKNOWN
    return _constant(numpy_helper.from_array(numbers.astype(np.int64 if to == onnx.TensorProto.INT64 else np.int32)))


def _attribute(attribute: onnx.AttributeProto) -> Constant:
    if attribute.HasField("t"):
        return _constant(attribute.t)
    if attribute.name in ("value_float", "value_floats"):
        return Constant(floating=True)
    if attribute.ref_attr_name or attribute.name not in ("value_int", "value_ints"):
        return _UNKNOWN
    numbers = attribute.i if attribute.name == "value_int" else list(attribute.ints)
    return _constant(numpy_helper.from_array(np.array(numbers, np.int64)))
