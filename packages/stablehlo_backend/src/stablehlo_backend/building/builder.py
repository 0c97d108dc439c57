"""The builder: lines of MLIR in nested blocks, functions, and the weights that the module names."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from iree.compiler import ir as mlir

from ir.types import TensorType
from stablehlo_backend.building.values import HloValue, attribute, spelled


class Block:
    """Lines in one region or function, and what was made in it once for all: constants, sizes, weights."""

    def __init__(self, isolated: bool) -> None:
        self.lines: list[str] = []
        self.known: dict[Any, Any] = {}
        self.isolated = isolated  # reads nothing of the blocks around it


class Builder:
    """Collects the text of one module."""

    def __init__(self) -> None:
        self.blocks = [Block(True)]
        self.functions: list[str] = []
        self.globals: dict[str, str] = {}  # name of a weight -> the line that declares it
        self._count = 0

    def fresh(self, prefix: str = "") -> str:
        """A name for a value that no other has."""
        self._count += 1
        return f"%{prefix}{self._count}"

    def line(self, text: str) -> None:
        """Add a line to the open block."""
        self.blocks[-1].lines.append(text)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once in the open block or one around it that can be read from here."""
        for block in reversed(self.blocks):
            if key in block.known:
                return block.known[key]
            if block.isolated:
                break
        made = self.blocks[-1].known[key] = make()
        return made

    @contextlib.contextmanager
    def nested(self, isolated: bool) -> Iterator[Block]:
        """A block of its own."""
        self.blocks.append(Block(isolated))
        try:
            yield self.blocks[-1]
        finally:
            self.blocks.pop()

    def operation(
        self,
        op: str,
        operands: Sequence[tuple[str, str]],
        results: Sequence[str],
        regions: Sequence[str] = (),
        attributes: dict[str, Any] | None = None,
    ) -> list[str]:
        """Add one operation in MLIR's generic form, checked by MLIR's own verifier; the names of its results.

        Args:
            op: its full name, "stablehlo.add".
            operands: the name and the type of each.
            results: the type of each.
            regions: see `region`.
            attributes: by name, see `attribute`; None leaves one out.

        Raises:
            TypeError: the operation does not exist or does not verify: a mistake in the handler.
        """
        names = [self.fresh() for _ in results]
        given = ", ".join(f"{k} = {attribute(a)}" for k, a in (attributes or {}).items() if a is not None)
        kinds = f"({', '.join(t for _, t in operands)}) -> ({', '.join(results)})"
        tail = (f" <{{{given}}}>" if given else "") + (f" ({', '.join(regions)})" if regions else "") + f" : {kinds}"
        if not regions:  # those are verified with the whole module
            verify_operation(op, tuple(t for _, t in operands), tuple(results), tail)
        made = f"{', '.join(names)} = " if names else ""
        self.line(f'{made}"{op}"({", ".join(n for n, _ in operands)}){tail}')
        return names

    def region(
        self, types: Sequence[TensorType], body: Callable[..., Sequence[HloValue]], isolated: bool = True
    ) -> str:
        """A region whose block has arguments of these types; `body` is called with them and gives what it returns."""
        with self.nested(isolated) as block:
            arguments = [HloValue(self.fresh("a"), t) for t in types]
            results = body(*arguments)
            kinds = ", ".join(spelled(r.type) for r in results)
            self.line(f'"stablehlo.return"({", ".join(r.name for r in results)}) : ({kinds}) -> ()')
        head = ", ".join(f"{a.name}: {spelled(a.type)}" for a in arguments)
        return "\n".join(["{", f"^bb0({head}):" if arguments else "", *block.lines, "}"])

    def module(self) -> str:
        """The text of the module in MLIR's own pretty form.

        Raises:
            TypeError: it does not verify: a mistake in a handler.
        """
        return verified("\n".join([*self.globals.values(), *self.functions]))


@functools.cache
def _context() -> mlir.Context:
    return mlir.Context()


@functools.lru_cache(maxsize=4096)
def verify_operation(op: str, operands: tuple[str, ...], results: tuple[str, ...], tail: str) -> None:
    """Let MLIR verify one operation by itself; `tail` is what follows its operands.

    Raises:
        TypeError: what MLIR says.
    """
    arguments = ", ".join(f"%a{i}: {t}" for i, t in enumerate(operands))
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    made = ", ".join(f"%r{i}" for i in range(len(results)))
    given = f"{made} = " if made else ""
    back = f"return {made} : {', '.join(results)}" if made else "return"
    verified(f'func.func private @f({arguments}) -> ({", ".join(results)}) {{ {given}"{op}"({names}){tail}\n{back} }}')


def verified(text: str) -> str:
    """The module as MLIR prints it.

    Raises:
        TypeError: it does not parse or verify.
    """
    try:
        return str(mlir.Module.parse(text, _context()))
    except mlir.MLIRError as error:
        said = re.findall(r"error: \S*: (.*)", str(error))
        raise TypeError("; ".join(said) or str(error)) from None
