"""Fragments as text: a parser for what tract and the Khronos parser both read, with lines in its errors.

A fragment is not rebuilt from what is parsed here: its text goes to the file as it stands. What is learnt is its
signature, which operations it calls, and whether it can work at all: names that nobody assigned, results left open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from nnef_backend.errors import DocumentError

_TOKEN = re.compile(
    r"(?P<space>\s+|#[^\n]*)|(?P<string>'[^'\n]*'|\"[^\"\n]*\")|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<mark>->|<=|>=|==|!=|&&|\|\||[-+*/^<>=(){}\[\],:;?!.])"
)
# tract reads a literal before it tries a name, so that a name which starts like a literal is cut in two.
LITERAL_PREFIXES = ("true", "false", "inf")
MAX_BYTES, MAX_NAME = 1 << 20, 1000  # of a file of fragments; letters
# Brackets: tract's parser reads what is in them twice, so that a word at depth d costs 2**d of 4 us.
MAX_DEPTH, _EASY_DEPTH, MAX_EFFORT = 10, 4, 1 << 17
# Operations and items of one statement: tract looks for a free name for each, k of them take k**3 of 20 ns.
MAX_OPERATIONS, MAX_NAMES, MAX_SEARCH = 256, 2048, 1 << 26
_TYPES = frozenset({"integer", "scalar", "logical", "string"})
_BINARY = frozenset({"+", "-", "*", "/", "^", "<", ">", "<=", ">=", "==", "!="})
# Words of Khronos' expressions that tract's parser lacks.
_FOREIGN = {
    "&&": "and(a, b)",
    "||": "or(a, b)",
    "!": "not(a)",
    "if": "select(c, a, b)",
    "for": "one line a step",
    "length_of": "a parameter",
    "shape_of": "tract_core_shape_of(a)",
    "range_of": "tract_core_range(..)",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a body: the operation or fragment, how many positional arguments, which by name, and where."""

    name: str
    positional: int
    named: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A fragment of a file: `parameters` are (name, type, has a default); `text` is the whole definition."""

    name: str
    text: str
    parameters: tuple[tuple[str, str, bool], ...]
    results: tuple[str, ...]
    calls: tuple[Call, ...]
    place: str
    extensions: tuple[str, ...] = ()
    uses_operators: bool = False

    def to_text(self) -> str:
        """The text with one newline at its end, as the document wants it."""
        return self.text.strip() + "\n"


def fragments_of(text: str, source: str = "fragment") -> list[Definition]:
    """The fragments of a .nnef text, in their order; `extension` statements before them belong to all of them.

    Args:
        text: definitions `fragment name(x: tensor<scalar>, k: scalar = 1.0) -> (y: tensor<scalar>) { .. }`, after
            `version` and `extension` statements, if any.
        source: what errors call the text: a file's path.

    Raises:
        DocumentError: a syntax error, a name used before it is assigned, assigned twice or left open; with file and
            line.
    """
    if len(text) > MAX_BYTES:
        raise DocumentError(f"{source:.200}: fragments of {len(text)} letters; {MAX_BYTES} are the most")
    if not text.isascii() and text.encode(errors="replace").decode() != text:
        raise DocumentError(f"{source:.200}: fragments that are no text in UTF-8")
    return _Parser(text, source).file()


@dataclass
class _Body:
    assigned: set[str]
    calls: list[Call] = field(default_factory=list)
    operators: bool = False


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.at = text, source, 0
        self.tokens = list(self._tokens())
        self._bounded()
        self.symbols: set[str] = set()

    def _tokens(self) -> Iterator[tuple[str, str, int, int]]:
        """(kind, text, line, where it begins)."""
        place, line = 0, 1
        while place < len(self.text):
            found = _TOKEN.match(self.text, place)
            if found is None:
                raise DocumentError(f"{self.source}:{line}: {self.text[place]!r} is no part of NNEF")
            if found.lastgroup != "space":
                yield str(found.lastgroup), found.group(), line, place
            line += found.group().count("\n")
            place = found.end()
        yield "end", "the end of the text", line, place

    def _bounded(self) -> None:
        """Refuse what tract takes long to read: brackets that nest deeply, and long statements."""
        depth = effort = operations = names = search = 0
        inside = False
        for (kind, word, line, _), (_, after, *_) in zip(self.tokens, [*self.tokens[1:], self.tokens[-1]], strict=True):
            if kind == "string":
                continue
            opens = word in ("(", "[")
            depth = depth + 1 if opens else max(0, depth - (word in (")", "]")))
            effort += 2**depth if depth > _EASY_DEPTH else 0
            if depth > MAX_DEPTH or effort > MAX_EFFORT:
                self.fail("brackets nest too deep for tract's parser; name parts of this in lines of their own", line)
            inside = word == "{" or (inside and word != "}")
            operations += inside and (word in _BINARY or (kind == "name" and after == "("))
            names += inside and kind == "name"
            if operations > MAX_OPERATIONS or names > MAX_NAMES or search > MAX_SEARCH:
                self.fail(
                    f"too long for tract: {MAX_OPERATIONS} operations and {MAX_NAMES} names are the most of one "
                    "statement; name parts of this in lines of their own",
                    line,
                )
            if word == ";":
                search += operations**3 + names**2
                operations = names = 0

    # -- tokens ----------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def word(self) -> str:
        return self.tokens[self.at][1]

    @property
    def line(self) -> int:
        return self.tokens[self.at][2]

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        raise DocumentError(f"{self.source}:{line or self.line}: {message:.500}")

    def take(self, *words: str) -> str:
        """The next token, which must be one of these."""
        word = self.word
        if word not in words or self.kind == "string":
            self.fail(f"expected {' or '.join(map(repr, words))}, found {word!r}")
        self.at += 1
        return word

    def skip(self, word: str) -> bool:
        """Whether the next token is this one, which is taken then."""
        if self.word != word or self.kind == "string":
            return False
        self.at += 1
        return True

    def name(self, what: str) -> str:
        if self.kind != "name":
            self.fail(f"expected {what}, found {self.word!r}")
        if self.word.startswith(LITERAL_PREFIXES) and self.word not in LITERAL_PREFIXES:
            self.fail(f"tract takes the beginning of {self.word} for a literal; choose another name")
        if len(self.word) > MAX_NAME:
            self.fail(f"{what} has {len(self.word)} letters, {MAX_NAME} are the most: {self.word}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    # -- declarations ----------------------------------------------------------------------------------------------

    def file(self) -> list[Definition]:
        extensions: list[str] = []
        while self.word in ("version", "extension"):
            begin, kind = self.tokens[self.at + 1][3], self.word
            while self.word != ";":
                if self.kind == "end":
                    self.fail(f"the statement {kind!r} does not end")
                self.at += 1
            statement = " ".join(self.text[begin : self.tokens[self.at][3]].split())
            self.at += 1
            if kind == "extension":
                extensions.append(statement)
                self.symbols.update(re.findall(r"^tract_symbol (\w+)$", statement))
        found: list[Definition] = []
        while self.kind != "end":
            made = self.fragment(tuple(extensions))
            if any(made.name == other.name for other in found):
                self.fail(f"the fragment {made.name} is defined twice")
            found.append(made)
        if not found:
            self.fail("no fragment here")
        return found

    def fragment(self, extensions: tuple[str, ...]) -> Definition:
        begin, line = self.tokens[self.at][3], self.line
        self.take("fragment")
        name = self.name("the fragment's name")
        if self.skip("<"):
            self.take("?")
            if self.skip("="):
                self.take(*_TYPES)
            self.take(">")
        parameters = self.parameters(name, defaults=True)
        self.take("->")
        results = self.parameters(name, defaults=False)
        if self.word != "{":
            self.fail(f"the fragment {name} needs a body in braces")
        self.at += 1
        body = _Body({p[0] for p in parameters} | self.symbols)
        while self.word != "}":
            if self.kind == "end":
                self.fail(f"the body of {name} does not end")
            self.assignment(body)
        self.at += 1
        left_open = [r for r, _, _ in results if r not in body.assigned]
        if left_open:
            self.fail(f"the fragment {name} does not assign its result {left_open[0]}", line)
        text = self.text[begin : self.tokens[self.at - 1][3] + 1]
        made = tuple(r for r, _, _ in results)
        place = f"{self.source}:{line}"
        return Definition(name, text, tuple(parameters), made, tuple(body.calls), place, extensions, body.operators)

    def parameters(self, owner: str, *, defaults: bool) -> list[tuple[str, str, bool]]:
        self.take("(")
        found: list[tuple[str, str, bool]] = []
        while not self.skip(")"):
            if found:
                self.take(",")
            name = self.name("a parameter's name")
            if any(name == other for other, _, _ in found):
                self.fail(f"{owner} declares {name} twice")
            self.take(":")
            type = self.type()
            given = defaults and self.skip("=")
            if given:
                self.expression(_Body(set()))
            found.append((name, type, given))
        return found

    def type(self) -> str:
        if self.skip("("):
            inner = [self.type()]
            while self.skip(","):
                inner.append(self.type())
            self.take(")")
            made = f"({', '.join(inner)})"
        elif self.skip("tensor"):
            self.take("<")
            element = self.take("?", *_TYPES) if self.word != ">" else ""
            self.take(">")
            made = f"tensor<{element}>"
        else:
            made = self.take("?", *_TYPES)
        while self.skip("["):
            self.take("]")
            made += "[]"
        return made

    # -- bodies ----------------------------------------------------------------------------------------------------

    def assignment(self, body: _Body) -> None:
        line = self.line
        close = {"(": ")", "[": "]"}.get(self.word)
        if close:
            self.at += 1
        names = [self.name("a result's name")]
        while self.skip(","):
            names.append(self.name("a result's name"))
        if close:
            self.take(close)
        self.take("=")
        self.expression(body)
        if self.word != ";":
            self.fail(f"expected ';' after the assignment of {names[0]}, found {self.word!r}")
        self.at += 1
        for name in names:
            if name in body.assigned:
                self.fail(f"{name} is assigned twice", line)
            body.assigned.add(name)

    def expression(self, body: _Body) -> None:
        self.operand(body)
        while self.word in _BINARY and self.kind == "mark":
            body.operators = True
            self.at += 1
            self.operand(body)
        self.native()

    def native(self) -> None:
        if self.kind != "string" and self.word in _FOREIGN:
            self.fail(f"tract's parser has no {self.word!r}: write {_FOREIGN[self.word]}")

    def operand(self, body: _Body) -> None:
        self.native()
        if self.kind in ("string", "number"):
            self.at += 1
        elif self.skip("-"):
            if self.kind != "number" and self.word != "inf":
                self.fail("tract's parser has no unary minus: write neg(a) or 0.0 - a")
            self.at += 1
        elif self.skip("("):
            self.items(body, ")")
        elif self.skip("["):
            self.items(body, "]")
        elif self.kind == "name":
            self.reference(body)
        else:
            self.fail(f"expected a value, found {self.word!r}")
        while self.skip("["):  # a part of a list
            self.items(body, "]", also=":")

    def items(self, body: _Body, close: str, also: str = ",") -> None:
        while not self.skip(close):
            if not self.skip(",") and not self.skip(also):
                self.expression(body)

    def reference(self, body: _Body) -> None:
        name, line = self.name("a name"), self.line
        if name in ("true", "false", "inf"):
            return
        if self.word == "<" and self.tokens[self.at + 1][1] in (*_TYPES, "?") and self.tokens[self.at + 2][1] == ">":
            self.at += 3
        if not self.skip("("):
            if name not in body.assigned:
                self.fail(f"{name} is neither a parameter nor assigned before", line)
            return
        positional = 0
        named: list[str] = []
        while not self.skip(")"):
            if positional or named:
                self.take(",")
            if self.kind == "name" and self.tokens[self.at + 1][1] == "=":
                named.append(self.name("an argument's name"))
                self.at += 1
            elif named:
                self.fail(f"{name}: a positional argument after a named one")
            else:
                positional += 1
            self.expression(body)
        body.calls.append(Call(name, positional, tuple(named), line))
