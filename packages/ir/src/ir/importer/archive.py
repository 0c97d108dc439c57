"""What a .pt2 archive may hold. torch.export.load trusts its file; this reads it first and refuses what could run code.

torch.export.load (2.13) evaluates size expressions as Python (sympy.sympify), unpickles example inputs and marked
weights without restriction, imports the modules that a tree of arguments names, loads the shared objects of compiled
packages, and makes a call of any attribute of `torch` that a node names. Here each of these is checked against what
torch.export.save writes of a model: data, operators and arithmetic.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive import constants as layout

from ir.errors import CaptureError

_WAY_OUT = "load a file that you trust with torch.export.load and pass the ExportedProgram"
_FACTORIES = {"list", "dict", "int", "float", "set", "tuple"}
_OPERATORS = {
    "getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "pos", "and_", "or_", "xor", "not_",
    "eq", "ne", "lt", "le", "gt", "ge", "abs", "lshift", "rshift", "inv", "invert",
}  # fmt: skip
_FILES = {"torch.ops.aten.from_file"}  # operators that touch the file system
_OP = re.compile(r"torch\.ops\.([A-Za-z]\w*)\.(?:[A-Za-z]|_(?!_)|__[a-z]+__(?:\.|$))\w*(?:\.[A-Za-z]\w*)?")
_DUNDERS = {"and", "or", "xor", "lshift", "rshift", "iand", "ior", "ixor", "ilshift", "irshift"}
_FILE_NAME = re.compile(r"[\w.-]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# what the repr of a size is made of: sympy's classes and torch's own functions of sizes
_SIZE_NAMES = {
    "Symbol", "Integer", "Float", "Rational", "Half", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Abs", "floor",
    "ceiling", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan", "LessThan",
    "StrictGreaterThan", "GreaterThan", "true", "false", "And", "Or", "Not", "Piecewise", "ExprCondPair", "Tuple",
    "oo", "int_oo", "IntInfinity", "NegativeIntInfinity", "Infinity", "NegativeInfinity", "log", "exp",
}  # fmt: skip
_GUARD_NAMES = {"L", "torch", "math", "int", "float", "bool", "len", "max", "min", "abs"}
_GUARD_ATTRIBUTES = {
    "size", "stride", "storage_offset", "shape", "dtype", "device", "ndim", "dim", "numel", "item", "floor", "ceil",
    "sqrt", "trunc", "sym_max", "sym_min", "sym_not", "sym_float", "sym_ite",
}  # fmt: skip
_ARITHMETIC = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Tuple, ast.Load, ast.boolop,
    ast.operator, ast.unaryop, ast.cmpop, ast.keyword, ast.Call, ast.Name, ast.IfExp,
)  # fmt: skip


def load_pt2(path: Path) -> ExportedProgram:
    """torch.export.load of a file that is not trusted: see check_archive for what it may hold.

    Raises:
        CaptureError: the file is missing, is no .pt2 archive, could run code, or torch.export.load refuses it.
    """
    if not path.is_file():
        raise CaptureError(f"{path}: no such file")
    check_archive(path)
    import torch.ao.quantization.fx._decomposed  # registers the ops of quantised programs

    try:
        program = torch.export.load(path)
    except Exception as error:
        raise CaptureError(f"{path} is not a .pt2 file that torch.export.load accepts: {error}") from error
    _check_weights(path, program)
    return program


def _check_weights(path: Path, program: ExportedProgram) -> None:
    """Every tensor must be what the graph was made for; torch.export.load takes any."""
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        wanted, name = node.meta.get("val"), spec.target
        given = program.state_dict.get(name, program.constants.get(name)) if name else None
        if not isinstance(wanted, torch.Tensor) or not isinstance(given, torch.Tensor):
            continue
        if (given.dtype, given.shape) != (wanted.dtype, wanted.shape):
            sides = [f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in (given, wanted)]
            raise CaptureError(f"{path}: the tensor {name} is {sides[0]}, the graph was made for {sides[1]}")


def check_archive(path: Path) -> None:
    """Read an archive without loading it.

    Raises:
        CaptureError: it is no archive of torch.export.save, or holds something that could run code or leave it.
    """
    try:
        names = _members(path)
        reader = torch._C.PyTorchFileReader(str(path))  # the parser that torch.export.load uses, so both see one file
        for name in names:
            if name.startswith(layout.MODELS_DIR):
                _Model(json.loads(reader.get_record(name))).check()
            elif name.startswith(layout.SAMPLE_INPUTS_DIR):
                _pickle(reader.get_record(name), "the example inputs hold")
            elif name.endswith("_config.json") and name.startswith((layout.WEIGHTS_DIR, layout.CONSTANTS_DIR)):
                _payloads(reader, name)
    except CaptureError as error:
        raise CaptureError(f"{path}: {error}") from error.__cause__
    except Exception as error:
        raise CaptureError(f"{path} is not a .pt2 archive of torch.export.save: {error}") from error


def _members(path: Path) -> list[str]:
    """The names in the archive, below its one folder."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    found: list[str] = []
    for entry in entries:
        name = entry.orig_filename
        if name.startswith(("/", "\\")) or ":" in name or "\0" in name or ".." in re.split(r"[/\\]", name):
            raise CaptureError(f"the archive's member {name!r} leaves the archive")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CaptureError(f"the archive's member {name!r} is compressed, which torch.export.save never does")
        found.append(name.partition("/")[2])
    if len({e.orig_filename.partition("/")[0] for e in entries}) > 1 or "" in found:
        # torch.export.load falls back to files at the top, an older format of pickles, where it finds no program
        raise CaptureError("the archive's members do not lie in one folder, which torch.export.save makes")
    if len(set(found)) != len(found):
        raise CaptureError("two members of the archive have one name")
    if layout.ARCHIVE_FORMAT_PATH not in found:
        raise CaptureError(f"an archive of an older format, which can hold any pickle: {_WAY_OUT}")
    for name in found:
        if name.startswith((layout.AOTINDUCTOR_DIR, layout.EXECUTORCH_DIR, layout.MTIA_DIR)):
            raise CaptureError(f"the archive holds compiled code ({name}): {_WAY_OUT}")
        if name.startswith((layout.WEIGHTS_DIR, layout.CONSTANTS_DIR)) and name.endswith(".pt"):
            raise CaptureError(f"weights in an older format, which can hold any pickle ({name}): {_WAY_OUT}")
    return found


def _pickle(data: bytes, what: str) -> None:
    """Refuse a pickle that holds more than tensors and plain containers."""
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise CaptureError(f"{what} pickled Python objects or no pickle at all; {_WAY_OUT}") from error


def _payloads(reader: Any, config: str) -> None:
    """The tensors that a weights or constants table names: plain files of the archive, as large as they claim."""
    folder = config.rpartition("/")[0]
    for name, payload in json.loads(reader.get_record(config))["config"].items():
        file = payload["path_name"]
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            raise CaptureError(f"the tensor {name} lies at {file!r}, outside of the archive")
        if file.startswith((layout.CUSTOM_OBJ_FILENAME_PREFIX, layout.OPAQUE_OBJ_FILENAME_PREFIX)):
            raise CaptureError(f"the constant {name} is a pickled object: {_WAY_OUT}")
        if payload["use_pickle"]:
            _pickle(reader.get_record(f"{folder}/{file}"), f"the tensor {name} holds")
        elif reader.get_record_size(f"{folder}/{file}") == 0:
            sizes = [s.get("as_int", 0) for s in payload["tensor_meta"]["sizes"]]
            if math.prod(sizes) != 0:
                raise CaptureError(f"the tensor {name} of sizes {sizes} has no data")


class _Model:
    """The program itself, as the JSON that torch's serializer writes."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.rules: dict[str, Callable[[Any], None]] = {
            "target": self.operator, "as_operator": self.operator, "expr_str": self.size, "guards_code": self.guards,
            "in_spec": self.tree, "out_spec": self.tree, "range_constraints": self.symbols,
        }  # fmt: skip

    def check(self) -> None:
        for key, value in _items(self.document):
            rule = self.rules.get(key)
            if rule is not None and value is not None:
                rule(value)

    def operator(self, target: Any) -> None:
        """Operators and arithmetic; a name that is none of them could be any function of torch."""
        if not isinstance(target, str):
            return  # the name of a mutated buffer is called target as well, and checked as text
        if not target.startswith(("torch.", "_operator.", "operator.", "math.", "#")):
            return  # the serializer keeps it as text
        head, _, name = target.rpartition(".")
        match = _OP.fullmatch(target)
        fine = (
            (head in ("_operator", "operator") and name in _OPERATORS)
            or (head == "math" and callable(getattr(math, name, None)))
            or (head == "torch" and re.fullmatch(r"_?sym_\w+", name) is not None)
            or (match is not None and not hasattr(type(torch.ops), match[1]) and _plain(target) and _dispatched(target))
        )
        if not fine or any(target == f or target.startswith(f + ".") for f in _FILES):
            raise CaptureError(f"a node calls {target}, which is no operator of a model: {_WAY_OUT}")

    def size(self, text: Any) -> None:
        """A size: calls of sympy's classes on symbols and numbers; it is evaluated as Python."""
        for node in _walk(text):
            called = isinstance(node, ast.Call) and not isinstance(node.func, ast.Name)
            if (
                called
                or (isinstance(node, ast.Name) and not _is_size_name(node.id))
                or not isinstance(node, _ARITHMETIC)
            ):
                raise CaptureError(f"a size is {text!r}, which is no arithmetic")
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _IDENTIFIER.fullmatch(node.value):
                raise CaptureError(f"a size names the symbol {node.value!r}")

    def guards(self, texts: Any) -> None:
        """Conditions on the inputs, which ExportedProgram.module() makes Python of."""
        for text in texts:
            for node in _walk(text):
                fine = (
                    node.attr in _GUARD_ATTRIBUTES
                    if isinstance(node, ast.Attribute)
                    else node.id in _GUARD_NAMES
                    if isinstance(node, ast.Name)
                    else isinstance(node, (*_ARITHMETIC, ast.Subscript))
                )
                if not fine:
                    raise CaptureError(f"a guard is {text!r}, which is more than a condition on sizes")

    def tree(self, text: Any) -> None:
        """The tree of arguments or results; some entries name a module to import."""
        if not isinstance(text, str) or not text:
            return
        for key, value in _items(_json_inside(json.loads(text))):
            if key == "__enum__" or (key == "default_factory_module" and value not in ("builtins", "collections")):
                raise CaptureError(f"the arguments' tree names Python objects to import: {_WAY_OUT}")
            if key == "default_factory_name" and value not in _FACTORIES:
                raise CaptureError(f"the arguments' tree calls {value!r}: {_WAY_OUT}")

    def symbols(self, ranges: Any) -> None:
        for name in ranges:
            if not _IDENTIFIER.fullmatch(name):
                raise CaptureError(f"{name!r} is no name of a symbol")


def _plain(target: str) -> bool:
    """True if the double underscores in an operator's name are those of aten's own operators."""
    return all(
        not part.startswith("__") or part.strip("_") in _DUNDERS
        for part in target.removeprefix("torch.ops.").split(".")
    )


def _dispatched(target: str) -> bool:
    """False for an operator that only TorchScript's interpreter has: aten::save, say, writes a file."""
    _, _, namespace, op, *given = target.split(".")
    known = [s.overload_name for s in torch._C._jit_get_schemas_for_operator(f"{namespace}::{op}")]
    asked = ["" if g == "default" else g for g in given] or known
    return not known or any(torch._C._dispatch_has_kernel(f"{namespace}::{op}.{o}".rstrip(".")) for o in asked)


def _is_size_name(name: str) -> bool:
    from torch.utils._sympy import functions

    return name in _SIZE_NAMES or name in functions.__all__


def _walk(text: Any) -> Iterator[ast.AST]:
    if not isinstance(text, str) or len(text) > 100_000:
        raise CaptureError("an expression that is no text, or too long")
    yield from ast.walk(ast.parse(text.strip(), mode="eval"))


def _items(document: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value of nested JSON."""
    stack = [document]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            yield from found.items()
            stack.extend(found.values())
        elif isinstance(found, list):
            stack.extend(found)


def _json_inside(document: Any) -> Any:
    """The same with texts that are JSON themselves opened up: contexts in a tree are."""
    if isinstance(document, dict):
        return {k: _json_inside(v) for k, v in document.items()}
    if isinstance(document, list):
        return [_json_inside(v) for v in document]
    if isinstance(document, str) and document[:1] in ("{", "[", '"'):
        try:
            return _json_inside(json.loads(document))
        except ValueError:
            return document
    return document
