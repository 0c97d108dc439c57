"""What torch.export recorded of dynamic sizes while it traced: numbers that it fixed, branches that the code took.

torch checks these notes whenever its own module is called. So does every program with those about the model's own
branches and about numbers that stand in the graph for a size; a file that runs elsewhere has no place for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ir import errors
from ir.dims import Dim, Expr
from ir.errors import CaptureError
from ir.graph import Node
from ir.importer.decisions import NOT_THE_MODEL
from ir.importer.origins import origin_of
from ir.importer.private_writes import writes
from ir.importer.pt2.expressions import Size
from ir.importer.symbols import Symbols, is_from_data
from ir.importer.torch_api import (
    FakeTensor,
    OpOverload,
    expression,
    guards_code,
    packet_name,
    schema_of,
    truncates,
)
from ir.ops import OF_TORCH
from ir.passes.checks import check, follows

_TORCH = str(Path(torch.__file__).parent)
_TOLD = 3  # conditions on one size that a note has
# where shape rules ask whether a size is 1, and count the pieces that `ir::require` holds to
_KERNELS = ("_prims", "_refs", "_meta_registrations", "_decomp", "_subclasses", "_inductor", "fx/")
_FIXED = "an op of torch takes a number there, and has that of the example"
_POOLS = "pooling_output_shape_pad_lr"  # drops the last window where that starts in the padding
_SLICES = "_compute_slice_index"
_EMPTY = "slice_forward"  # asks whether a slice ends behind its beginning, and has no elements where not
_WINDOWS = "torch's pools with ceil_mode drop a window elsewhere"
_ASKED = "torch's shape rules found that of the example, and its sizes stand in the graph as numbers"


def truncated(program: ExportedProgram) -> str:
    """What torch.export put in the place of `int()` of a float that a size decides: its value at the traced size.

    Empty if there is none: such a number would stand in the graph for all sizes.
    """
    import sympy

    env = shape_env_of(program)
    recorded = [(g.expr, f", {g.sloc}") for g in env.guards] if env is not None else []
    recorded += [(a.expr, "") for a in env.deferred_runtime_asserts.get(None, ())] if env is not None else []
    for condition, place in recorded:
        if isinstance(condition, sympy.Eq) and truncates(condition) and any(a.is_number for a in condition.args):
            made, number = condition.args
            return (
                f"torch.export fixed {made} at {number}, its value at the sizes of the example{place}; write "
                "math.floor or // where the code has int() of a float, and sizes in place of factors"
            )
    return ""


def warn_of_fixed_results(program: ExportedProgram) -> None:
    """Tell of each custom op that returns numbers: in the program they are those of its fake, for all inputs.

    Warns:
        UserWarning: there is such an op; a size, which is symbolic, is no such number.
    """
    for node in program.graph.nodes:
        name = packet_name(node.target.overloadpacket) if isinstance(node.target, OpOverload) else "aten::"
        if name.startswith(OF_TORCH):
            continue
        returns, made = schema_of(node.target).returns, node.meta.get("val")
        values = made if isinstance(made, (tuple, list)) else [made]
        kinds = {str(r.type) for r, v in zip(returns, values, strict=False) if isinstance(v, (int, float, type(None)))}
        if told := " and ".join(sorted(kinds & {"float", "int", "bool"})):
            what = f"{name} returns {told}, in the place of which torch.export has what its fake gave, for all inputs"
            errors.warn(f"{what}; return a tensor of no axes, and read it by .item()\n  at {origin_of(node)}")


def equalities(program: ExportedProgram, symbols: Symbols) -> Iterator[tuple[Dim, Dim]]:
    """Sizes that torch.export took to be one: what operators need of their operands, and what the code checks."""
    import sympy

    env = shape_env_of(program)
    for guard in env.guards if env is not None else ():
        condition = env.replace(guard.expr)
        if isinstance(condition, sympy.Eq) and not any(a.is_number for a in condition.args):
            try:
                one, other = (symbols.expression(a) for a in condition.args)
            except CaptureError:  # a function that the IR lacks
                continue
            if one != other:
                yield one, other


@dataclass(frozen=True)
class Branch:
    """A condition on sizes that the model's code asked for, and that held for the example."""

    condition: Any  # sympy's, or out of a file a Size
    place: str


@dataclass(frozen=True)
class RecordedConditions:
    """What was recorded of sizes: the conditions that the capture decided, and what torch's kernels asked besides.

    The latter matter where the answer stands in the graph. `from_two` are torch's names of the symbols whose range the
    user began at 2, which is where torch begins every other one too.
    """

    branches: Sequence[Branch]
    asked: Sequence[Branch]
    from_two: Collection[str] = ()


def branches(
    program: ExportedProgram,
    symbols: Symbols,
    asserted: bool = False,
    is_of_copy: Callable[[Any, str], bool] | None = None,
) -> list[Branch]:
    """The conditions on sizes that the graph needs, each once.

    These are what code outside of torch asked for, and what torch fixed at the number of the example: `linspace` takes
    no size that is symbolic. The other questions of torch's kernels do not matter.

    Where they are `asserted` by the program itself, only the warning is left to give. Of what torch asked to copy
    a tensor, or not, both sides are one, unless something is written in place.

    Warns:
        UserWarning: there are any: the graph has the side of the example alone.
    """
    import sympy

    not_strict = {sympy.Gt: sympy.Ge, sympy.Lt: sympy.Le}  # at the end of an axis both sides of a slice are one
    names = symbols.plain_names
    held: dict[str, Branch] = {}
    env = shape_env_of(program)
    is_of_copy = None if writes(program.graph_module) else is_of_copy
    for guard in env.guards if env is not None else ():
        place = _place(guard)
        if is_of_copy is not None and is_of_copy(guard.expr, place):
            continue
        if place and not (place == _WINDOWS and _follows_from_ranges(guard.expr, symbols)):
            expr = env.replace(guard.expr)  # sizes that turned out equal are one symbol by now
            if _is_of_slice(guard):
                if 0 not in expr.args:  # by its sign a place is counted from the one end or the other
                    expr = not_strict.get(expr.func, expr.func)(*expr.args)
                if _follows_from_ranges(expr, symbols):
                    continue
            condition = expr.xreplace(names)
            if condition.func(*condition.args) is not sympy.true:  # sizes of one name are one size
                held[f"{symbols.text(expr)}  ({place})"] = Branch(expr, place)
    found = list(held.values())
    for asserted_here, where in _assertions(program) if asserted else ():
        condition = asserted_here.xreplace(names)
        if condition is not sympy.true:
            held.setdefault(f"{symbols.text(asserted_here)}  ({where})", Branch(asserted_here, where))
    if held:
        _warn("the model branches on dynamic sizes", held)
    return found


def warn(asked: Sequence[Branch], symbols: Symbols) -> None:
    """Say where a graph holds in which torch fixed sizes that depend on dynamic ones."""
    if asked:
        _warn("sizes that depend on dynamic ones are fixed", [symbols.text(b.condition) for b in asked])


def _warn(what: str, conditions: Iterable[str]) -> None:
    lines = "".join(f"\n  {c}" for c in conditions)
    errors.warn(f"{what}; the graph is right only where{lines}")


def asked(program: ExportedProgram) -> list[Branch]:
    """The sizes that torch's kernels found to be a number: each matters where that number stands in the graph."""
    import sympy

    env = shape_env_of(program)
    found = {}
    for guard in env.guards if env is not None else ():
        condition = env.replace(guard.expr)
        fixed = isinstance(condition, sympy.Eq) and any(a.is_number for a in condition.args)
        if fixed and not _place(guard):
            found[condition] = Branch(condition, _ASKED)
    return list(found.values())


def narrowed(program: ExportedProgram, symbols: Symbols, names: Collection[str]) -> tuple[str, ...]:
    """Of the sizes that these names ask for at every value, those that torch found a narrower range for, and why."""
    env, told = shape_env_of(program), []
    for s, name in symbols.names.items():
        low, high = (found.min or 0, found.max) if (found := symbols.ranges.get(name)) is not None else (0, None)
        if name not in names or (low == 0 and high is None):
            continue
        asked = {symbols.text(env.replace(g.expr)): None for g in env.guards if env.replace(g.expr).free_symbols == {s}}
        why = f", since the model's code or an op asked whether {' and '.join(list(asked)[:_TOLD])}" if asked else ""
        ends = f"from {low} on" if high is None else f"from {low} to {high}"
        told.append(f"{name} is {ends} in the program, where dynamic_shapes asks for every size{why}")
    return tuple(told)


def _place(guard: Any) -> str:
    """Where the model asked for a condition, or what fixed a number; empty for what torch's kernels ask besides."""
    import sympy

    frame: Any = getattr(guard.sloc, "framework_loc", None)
    if _is_of_slice(guard):
        line: Any = guard.sloc.maybe_user_loc
        return f"a slice at {line.filename}:{line.lineno}" if hasattr(line, "filename") else "a slice of the model"
    if hasattr(frame, "filename") and not frame.filename.startswith(NOT_THE_MODEL):
        return f"{frame.filename}:{frame.lineno}"
    if getattr(frame, "name", None) == _POOLS:
        return _WINDOWS
    kernel = hasattr(frame, "filename") and frame.filename.removeprefix(_TORCH).lstrip("/").startswith(_KERNELS)
    fixed = isinstance(guard.expr, sympy.Eq) and any(a.is_number for a in guard.expr.args)
    return _FIXED if fixed and not kernel else ""


def _is_of_slice(guard: Any) -> bool:
    """True of a question of where a slice begins or ends: at the place that is named, or at an end of the axis.

    And of one that left it without elements.
    """
    import sympy

    asks = getattr(getattr(guard.sloc, "framework_loc", None), "name", None)
    return asks == _SLICES or (asks == _EMPTY and isinstance(guard.expr, (sympy.Lt, sympy.Gt)))


def _follows_from_ranges(condition: Any, symbols: Symbols) -> bool:
    """True of a condition that the program's ranges of sizes say already."""
    try:
        return follows(symbols.expression(condition), symbols.ranges)
    except CaptureError:  # a function that the IR lacks
        return False


def _asserted(node: Any) -> Any:
    """The condition of an assertion, of sympy; None where it is one on data."""
    value = getattr(node.args[0], "meta", {}).get("val")
    expr = expression(value) if isinstance(value, torch.SymBool) else None
    return None if expr is None or any(map(is_from_data, expr.free_symbols)) else expr


def drop_needless_assertions(program: ExportedProgram, met: Sequence[Any], asked: Collection[Any]) -> None:
    """Take out the assertions that a size is not some number, for which torch's shape rules asked and nobody else.

    As guards, on the other rungs, those do not matter either: `split` asks if there is anything to split.

    Args:
        met: what `noting_deferred` noted.
        asked: conditions that the model's code asked for itself, which stay.
    """
    import sympy

    needless = {g.expr for g in met if isinstance(g.expr, sympy.Ne)}
    needless -= {g.expr for g in met if _place(g)}.union(asked, map(sympy.Not, asked))
    for node in [n for n in program.graph.nodes if n.target is torch.ops.aten._assert_scalar.default]:
        if _asserted(node) in needless:
            program.graph.erase_node(node)


def _assertions(program: ExportedProgram) -> Iterator[tuple[Any, str]]:
    """The conditions on sizes of inputs that the program asserts, each with the source line."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default and (expr := _asserted(node)) is not None:
            origin = origin_of(node.args[0])
            yield expr, f"{origin.file}:{origin.line}"


def checks(branches: Sequence[Branch], symbols: Symbols, known: Collection[str | None]) -> list[Node]:
    """The conditions as checks, as far as they are about these symbols.

    Raises:
        CaptureError: one out of a file is no condition on the program's sizes.
    """
    nodes = []
    for branch in branches:
        of_file = isinstance(branch.condition, Size)
        try:
            condition = symbols.expression(branch.condition)
        except CaptureError:
            if of_file:
                raise
            continue  # the warning has named it
        if of_file and not _is_truth(condition):
            raise CaptureError(f"a condition on sizes is {branch.condition.text!r:.200}, which is no condition on them")
        if isinstance(condition, Expr) and condition.symbols <= set(known):
            why = branch.place if branch.place in (_FIXED, _WINDOWS, _ASKED) else f"{branch.place} branched on that"
            message = f"the graph holds only where {condition}: {why}"
            nodes.append(check(condition, f"{message}; capture the model anew for other inputs"))
    return nodes


def _is_truth(condition: Any) -> bool:
    """True of a condition that may hold; names that are one may leave nothing of it but True."""
    return condition is True or (isinstance(condition, Expr) and condition.kind == "bool")


def is_from_file(program: Any) -> bool:
    """True if there are conditions, and no note of who asked for them."""
    env = shape_env_of(program)
    return (env is None or not env.guards) and bool(guards_code(program))


def shape_env_of(program: Any) -> Any:
    """What torch recorded while it traced; None for a program out of a file."""
    fakes = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    return next((f.fake_mode.shape_env for f in fakes if isinstance(f, FakeTensor)), None)
