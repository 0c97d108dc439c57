"""An NNEF document in memory, and its text.

A document is what `graph.nnef` says, plus the tensors that its variables are labelled with. It prints the
same text for the same content every time, and it refuses what no NNEF parser would read back: bad names,
reserved words, NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ir.opened import Place
from nnef_backend.errors import DocumentError
from nnef_backend.format.dat import BlockQuantised
from nnef_backend.format.grammar import LITERAL_PREFIXES, Definition

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST = 200  # letters of a name: a tensor file may bear it
RESERVED = frozenset(
    [
        "version",
        "extension",
        "graph",
        "fragment",
        "tensor",
        "integer",
        "scalar",
        "logical",
        "string",
        "true",
        "false",
        "for",
        "in",
        "if",
        "else",
        "yield",
        "length_of",
        "shape_of",
        "range_of",
        "lengthof",
        "shapeof",
        "rangeof",
        "inf",
    ]
)
PROPERTIES = "tract_core_properties"  # the fragment in which tract looks for a model's metadata


class Ref(str):
    """The name of a tensor where a string would otherwise be quoted (in attributes)."""

    __slots__ = ()


class Expr(str):
    """A symbolic expression, printed as it stands: `Expr("S-1")`."""

    __slots__ = ()


Literal: TypeAlias = "bool | int | float | str | Ref | Expr | Sequence[Literal]"
TensorSource: TypeAlias = np.ndarray | BlockQuantised | Callable[[], np.ndarray] | Callable[[], BlockQuantised]


def is_identifier(name: str) -> bool:
    """Whether every NNEF parser in use reads `name` as one identifier."""
    if not IDENTIFIER.fullmatch(name) or name in RESERVED:
        return False
    return not name.startswith(LITERAL_PREFIXES)


def identifier(text: str, taken: Iterable[str] = ()) -> str:
    """A legal name close to `text` that is not in `taken` (a set is quickest)."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:LONGEST] or "_"
    if not is_identifier(name):
        name = f"_{name}"
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """A legal name for each of some names, all of them different."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        found[name] = identifier(name, taken)
        taken.add(found[name])
    return found


def float_text(value: float) -> str:
    """A float literal that tract and the Khronos parser both read, exact for binary32.

    tract keeps float literals as binary32: what needs more bits belongs in a variable.

    Raises:
        DocumentError: the value is NaN, which has no literal.
    """
    if math.isnan(value):
        raise DocumentError("NaN has no literal in NNEF; use a variable")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    digits, mark, exponent = repr(float(value)).partition("e")
    if "." not in digits:
        digits += ".0"
    return digits + mark + exponent


def literal_text(value: Literal, *, bare: bool = False) -> str:
    """The text of a literal; with `bare`, plain strings are names of tensors instead of quoted strings.

    Raises:
        DocumentError: the value has no literal form.
    """
    match value:
        case Expr() | Ref():
            return str(value)
        case bool() | np.bool_():
            return "true" if value else "false"
        case int() | np.integer():
            return str(int(value))
        case float() | np.floating():
            return float_text(float(value))
        case str():
            return value if bare else _quoted(value)
        case tuple():
            return "(" + ", ".join(literal_text(item, bare=bare) for item in value) + ")"
        case list():
            return "[" + ", ".join(literal_text(item, bare=bare) for item in value) + "]"
    raise DocumentError(f"{type(value).__name__} has no literal form in NNEF: {value!r}")


def _quoted(text: str) -> str:
    if any(mark in text for mark in "'\"\\\n"):
        raise DocumentError(f"no NNEF string can hold quotes, backslashes or line ends: {text!r}")
    return f"'{text}'"


@dataclass(frozen=True, slots=True)
class Operation:
    """`results = name<dtype>(*inputs, **attributes);`

    `inputs` are names of tensors, expressions, numbers, or lists of these; in `attributes` a string is a
    string, and a tensor is named with `Ref`. `listed` writes the results as `[a, b] = ...`, which unstack and
    split want in Khronos. `comment` stands behind it, `place` is where it comes from; `requirement` is what a run
    that stops there did not fulfil.
    """

    results: tuple[str, ...]
    name: str
    inputs: tuple[Literal, ...] = ()
    attributes: Mapping[str, Literal] = field(default_factory=dict)
    dtype: str = ""
    listed: bool = False
    comment: str = ""
    place: Place | None = field(default=None, compare=False, repr=False)
    requirement: str = field(default="", compare=False, repr=False)

    def to_text(self) -> str:
        """The assignment on one line.

        Raises:
            DocumentError: a name or a literal that NNEF cannot express.
        """
        for name in (*self.results, self.name, *self.attributes):
            if not is_identifier(name):
                raise DocumentError(f"{name!r} is no NNEF identifier (in the operation {self.name})")
        arguments = [literal_text(value, bare=True) for value in self.inputs]
        arguments += [f"{name} = {literal_text(value)}" for name, value in self.attributes.items()]
        results = ", ".join(self.results)
        if self.listed:
            results = f"[{results}]"
        elif len(self.results) > 1:
            results = f"({results})"
        generic = f"<{self.dtype}>" if self.dtype else ""
        behind = f"  # {' '.join(self.comment.splitlines())}" if self.comment else ""
        return f"{results} = {self.name}{generic}({', '.join(arguments)});{behind}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a fragment: `name: type` or `name: type = default`; the type is NNEF text."""

    name: str
    type: str = "tensor<scalar>"
    default: Literal | None = None

    def to_text(self) -> str:
        tail = "" if self.default is None else f" = {literal_text(self.default)}"
        return f"{self.name}: {self.type}{tail}"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment with a body of operations: what a custom op or the body of a scan becomes."""

    name: str
    parameters: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    operations: tuple[Operation, ...]

    @property
    def read(self) -> set[str]:
        """The names of the tensors that its operations read."""
        return {name for o in self.operations for name in _refs((o.inputs, tuple(o.attributes.values())))}

    def to_text(self) -> str:
        """The definition.

        Raises:
            DocumentError: a name or a literal that NNEF cannot express.
        """
        for name in (self.name, *(p.name for p in self.parameters), *(r.name for r in self.results)):
            if not is_identifier(name):
                raise DocumentError(f"{name!r} is no NNEF identifier (in the fragment {self.name})")
        head = ", ".join(parameter.to_text() for parameter in self.parameters)
        tail = ", ".join(result.to_text() for result in self.results)
        body = "".join(f"    {operation.to_text()}\n" for operation in self.operations)
        return f"fragment {self.name}({head}) -> ({tail})\n{{\n{body}}}\n"


def _refs(x: object) -> Iterator[Ref]:
    if isinstance(x, Ref):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from _refs(item)


def without_comments(text: str) -> str:
    """NNEF text without its comments; a hash mark inside a string stays."""
    return re.sub(r"""('[^'\n]*'|"[^"\n]*")|#[^\n]*""", lambda found: found.group(1) or "", text)


@dataclass(slots=True)
class Document:
    """A graph, its fragments and its tensors.

    `extensions` are the words after `extension` ("tract_registry tract_core"); `tensors` maps the labels of
    variables to arrays, or to functions that make one when it is written, so that weights need not all exist
    at the same time. `properties` are metadata that tract hands out with the model.
    """

    extensions: list[str] = field(default_factory=list)
    fragments: list[Fragment | Definition] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    tensors: dict[str, TensorSource] = field(default_factory=dict)
    name: str = "network"
    properties: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def variable(
        self, name: str, label: str, shape: Sequence[int], tensor: TensorSource, dtype: str = "scalar"
    ) -> None:
        """Add `name = variable<dtype>(label, shape)` and its tensor; a label may be declared only once.

        Raises:
            DocumentError: the label is taken.
        """
        if label in self.tensors:
            raise DocumentError(f"two tensors are labelled {label!r}")
        self.tensors[label] = tensor
        attributes: dict[str, Literal] = {"label": label, "shape": [int(extent) for extent in shape]}
        self.operations.append(Operation((name,), "variable", (), attributes, dtype=dtype))

    def to_text(self) -> str:
        """The text of graph.nnef.

        Raises:
            DocumentError: a name or literal that NNEF cannot express, a name assigned twice, an output
            nobody assigns,
                or externals in another order than the inputs.
        """
        self._check_names()
        lines = ["version 1.0;", *(f"extension {extension};" for extension in self.extensions), ""]
        if self.properties:
            pairs = literal_text([(str(key), value) for key, value in self.properties.items()])
            lines += [f"fragment {PROPERTIES}() -> (properties: (string, tensor<scalar>)[])"]
            lines += [f"{{\n    properties = {pairs};\n}}\n"]
        lines += [fragment.to_text() for fragment in self.fragments]
        lines += [f"graph {self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})", "{"]
        lines += [f"    {operation.to_text()}" for operation in self.operations]
        return "\n".join([*lines, "}", ""])

    def _check_names(self) -> None:
        assigned: set[str] = set()
        for operation in self.operations:
            for name in operation.results:
                if name in assigned:
                    raise DocumentError(f"{name!r} is assigned twice")
                assigned.add(name)
        for name in (*self.inputs, *self.outputs):
            if name not in assigned:
                raise DocumentError(f"no operation assigns {name!r}, which the graph names as an input or output")
        declared = [op.results[0] for op in self.operations if op.name in ("external", "tract_core_external")]
        if declared != self.inputs:
            # tract numbers its inputs by these statements, other readers by the graph's parameters.
            raise DocumentError(f"the inputs are {self.inputs}, but declared in the order {declared}")
        if len(set(self.inputs)) < len(self.inputs) or len(set(self.outputs)) < len(self.outputs):
            raise DocumentError("an input or an output is named twice")
