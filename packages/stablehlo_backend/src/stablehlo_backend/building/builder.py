"""The builder: operations of MLIR in nested blocks, each looked at by MLIR's own verifier as it is added."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from iree.compiler import ir as mlir

from stablehlo_backend.building.values import attribute

T = TypeVar("T")


class Region(NamedTuple):
    """What becomes the one block of a region: `body` gets its arguments, of these types, and gives what it returns."""

    types: Sequence[str]
    body: Callable[..., Sequence[mlir.Value]]
    isolated: bool = True


class Scope(NamedTuple):
    """An open block, and what was made in it once for all: constants, sizes, weights."""

    block: mlir.Block
    known: dict[Any, Any]
    isolated: bool  # reads nothing of the blocks around it


class Builder:
    """One module, and the blocks of it that are open."""

    def __init__(self) -> None:
        with _context(), mlir.Location.unknown():
            self.module = mlir.Module.create()
        self.scopes = [Scope(self.module.body, {}, True)]

    def declare(self, text: str) -> None:
        """Add to the module what stands outside of its functions, and before them."""
        with _context():
            mlir.InsertionPoint.at_block_begin(self.module.body).insert(mlir.Operation.parse(text))

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once in the open block or one around it that can be read from here."""
        for scope in reversed(self.scopes):
            if key in scope.known:
                found: T = scope.known[key]
                return found
            if scope.isolated:
                break
        made = self.scopes[-1].known[key] = make()
        return made

    @contextlib.contextmanager
    def inside(self, block: mlir.Block, isolated: bool = True) -> Iterator[None]:
        """Operations go into this block."""
        self.scopes.append(Scope(block, {}, isolated))
        try:
            yield
        finally:
            self.scopes.pop()

    def operation(
        self,
        op: str,
        operands: Sequence[mlir.Value],
        results: Sequence[str],
        regions: Sequence[Region] = (),
        attributes: Mapping[str, Any] | None = None,
    ) -> list[mlir.Value]:
        """Add one operation; its results.

        Args:
            op: its full name, "stablehlo.add".
            results: the type of each.
            attributes: by name, see `attribute`.

        Raises:
            TypeError: the operation does not exist or does not verify: a mistake in the handler.
        """
        if not _context().is_registered_operation(op):
            raise TypeError(f"{op} is an unregistered operation")
        with _context(), mlir.Location.unknown(), mlir.InsertionPoint(self.scopes[-1].block), _said():
            types = [mlir.Type.parse(t) for t in results]
            given = {k: mlir.Attribute.parse(attribute(a)) for k, a in (attributes or {}).items()}
            made = mlir.Operation.create(op, types, operands, given, regions=len(regions))
            try:
                for place, region in zip(made.regions, regions, strict=True):
                    arguments = [mlir.Type.parse(t) for t in region.types]
                    block = place.blocks.append(*arguments)
                    with self.inside(block, region.isolated):
                        self.operation("stablehlo.return", region.body(*block.arguments), [])
                made.verify()
            except BaseException:
                made.erase()
                raise
            return list(made.results)

    def open(self, name: str, **words: str) -> mlir.Operation:
        """A function that takes nothing yet; operations go into its block."""
        with _context(), mlir.Location.unknown(), mlir.InsertionPoint(self.module.body):
            given = {k: mlir.StringAttr.get(v) for k, v in {"sym_name": name, **words}.items()}
            given["function_type"] = mlir.TypeAttr.get(mlir.FunctionType.get([], []))
            made = mlir.Operation.create("func.func", attributes=given, regions=1)
            self.scopes.append(Scope(made.regions[0].blocks.append(), {}, True))
        return made

    def argument(self, type: str) -> mlir.Value:
        """One more argument of the open function."""
        with _context():
            return self.scopes[-1].block.add_argument(mlir.Type.parse(type), mlir.Location.unknown())

    def close(self, function: mlir.Operation, results: Sequence[mlir.Value]) -> None:
        """The end of the open function."""
        block = self.scopes[-1].block
        with _context():
            kind = mlir.FunctionType.get([a.type for a in block.arguments], [r.type for r in results])
            function.attributes["function_type"] = mlir.TypeAttr.get(kind)
        self.operation("func.return", results, [])
        self.scopes.pop()

    def text(self, main: mlir.Operation, reflection: str) -> str:
        """The text of the module in MLIR's own pretty form, with what IREE's tools show of its main function.

        Raises:
            TypeError: it does not verify: a mistake in a handler.
        """
        with _context(), _said():
            main.attributes["iree.reflection"] = mlir.Attribute.parse(reflection)
            self.module.operation.verify()
        return str(self.module)


@functools.cache
def _context() -> mlir.Context:
    return mlir.Context()


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """What MLIR says, as the mistake of a handler."""
    try:
        yield
    except mlir.MLIRError as error:
        raise TypeError("; ".join(re.findall(r"error: \S*: (.*)", str(error))) or str(error)) from None
