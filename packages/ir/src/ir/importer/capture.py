"""nn.Module, ExportedProgram or .pt2 file -> ir.Graph, through torch.export."""

from __future__ import annotations

import contextlib
import copyreg
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim as TorchDim
from torch.export import ExportedProgram

from ir.collector import held_back
from ir.errors import CaptureError
from ir.graph import Graph
from ir.importer import autocasts, cache_shapes, caches, decisions, file_guards, guards, ladder, sharded, wrong_calls
from ir.importer.context import Capture
from ir.importer.dim_names import check_names, name_symbols
from ir.importer.functions import FunctionModule, of_call, one_by_one
from ir.importer.input_strides import reads_strides
from ir.importer.ladder import Rung
from ir.importer.live import live
from ir.importer.private_writes import writes
from ir.importer.program_graph import graph_of
from ir.importer.pt2.program import SavedProgram, told
from ir.importer.pt2.rebuild import put_arguments
from ir.importer.pt2.recorded_conditions import EXTRA, unpacked
from ir.importer.pt2.serializable import serializable
from ir.importer.retrace import functionalised, needs_retrace
from ir.importer.symbols import Symbols
from ir.importer.torch_api import guards_code, put, pytree
from ir.locks import one_at_a_time
from ir.progress import stage


@one_at_a_time
@autocasts.uncast
def capture(
    model: Any,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> Graph:
    """The graph of a model.

    Args:
        model: an nn.Module, a torch.export.ExportedProgram, the path of a .pt2 file, or an ir.Graph (as it is).
        args: example arguments, as for torch.export.export (a tensor may stand for a tuple of it alone); not needed
            for a program that exists already.
        kwargs: example arguments by name.
        dynamic_shapes: torch.export's own argument. A string in place of a Dim names a dimension that torch.export
            finds the range of (Dim.DYNAMIC). For a program that exists already it only names the dimensions that are
            dynamic there. A Python int
            among the arguments is fixed, or with Dim.DYNAMIC in its place an input of the graph, int64 of shape ().
        input_names: names for the flat tensor inputs, in order; the first ones if fewer.
        output_names: names for the flat tensor outputs, as well. Those of the model's own that would be two things in a
            file get a number.

    Warns:
        UserWarning: the model's code branched on a dynamic size: the graph has the branch of the example alone.

    Raises:
        CaptureError: torch.export refused the model, or its graph has something that the IR cannot say.

    Examples:
        >>> graph = ir.capture(model, args, dynamic_shapes=({0: "B"},))
        >>> [str(v.type) for v in graph.inputs]
        ['f32[B, 3]']
    """
    if isinstance(model, Graph):
        return model
    args, kwargs = arguments(args, kwargs)
    caches.register(model)
    dynamic_shapes = one_by_one(model, args, kwargs, dynamic_shapes)
    dynamic_shapes = cache_shapes.spread(model, args, kwargs, dynamic_shapes)
    if isinstance(model, (str, os.PathLike)):
        with told(Path(model)):
            with stage("read"):
                saved = SavedProgram(Path(model))
            return _saved(saved, args, kwargs, dynamic_shapes, input_names, output_names)
    casts = () if isinstance(model, ExportedProgram) else autocasts.around()
    with autocasts.casting(casts):
        program, rung = _program(model, args, kwargs, dynamic_shapes)
    held = None if isinstance(model, ExportedProgram) else live(model)
    symbols = Symbols(program.range_constraints)
    name_symbols(program, symbols, args, kwargs, dynamic_shapes, existed=rung is None)
    branches = guards.branches(program, symbols, *(rung.answers if rung is not None else ()))
    recorded = guards.RecordedConditions(branches, guards.asked(program), symbols.begun_at_two)
    if rung is not None:
        needed = [b.condition for b in (*recorded.branches, *recorded.asked)]
        specialized = decisions.specialized(rung.decided, needed, guards.shape_env_of(program), symbols)
        strings = [name for name in pytree.tree_leaves(dynamic_shapes) if isinstance(name, str)]
        narrowed = guards.narrowed(program, symbols, strings)
        rung = replace(rung, decided=(), specialized=specialized, narrowed=narrowed)
    told_by = None if guards.is_from_file(program) else recorded
    if casts or needs_retrace(program.graph_module):
        with autocasts.casting(casts):
            program = functionalised(program)
    names: dict[str, Any] = {"input_names": input_names, "output_names": output_names}
    return graph_of(program, symbols, live=held, rung=rung, recorded=told_by, **names)


@held_back
def _saved(
    saved: SavedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    symbol_names: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of a file's program, which torch does not see unless it has to trace the program anew."""
    if not needs_retrace(saved.graph_module):
        saved.check_results()
        observed = writes(saved.graph_module) or reads_strides(saved.graph_module)
        own = Symbols(saved.install_fakes()) if observed else saved.symbols
        own.rename(symbol_names or {})
        name_symbols(saved, own, args, kwargs, dynamic_shapes)
        own.suggest(saved.dimension_names)
        own.begin_at_two(saved.recorded.from_two if saved.recorded is not None else ())
        return graph_of(saved, own, recorded=saved.recorded, input_names=input_names, output_names=output_names)
    program, lines = saved.rebuilt()
    spec = saved.call_spec
    symbols = Symbols(program.range_constraints)
    symbols.rename(symbol_names or {})
    name_symbols(program, symbols, args, kwargs, dynamic_shapes, saved)
    symbols.suggest(saved.dimension_names)
    symbols.begin_at_two(saved.recorded.from_two if saved.recorded is not None else ())
    program = functionalised(program)
    for node in program.graph.nodes:
        node.meta["stack_trace"] = lines.get(node.meta.get("stack_trace"), "")
    put_arguments(program, spec.in_spec, saved.argument_names)
    call: Any = program.module_call_graph[0].signature
    call.out_spec = spec.out_spec
    put(program, guards_code=[file_guards.plain_condition(text) for text in guards_code(saved)])
    names = [*(input_names or ()), *saved.input_names[len(input_names or ()) :]]
    kept = saved.recorded
    return graph_of(program, symbols, recorded=kept, input_names=names, output_names=output_names, of_file=True)


def arguments(args: Any, kwargs: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call; a tensor in place of a sequence is the only one.

    Raises:
        TypeError: `args` is no sequence, or `kwargs` no mapping.
    """
    if isinstance(args, torch.Tensor):
        args = (args,)
    if isinstance(args, (str, Mapping)) or not isinstance(args, Iterable):
        raise TypeError(f"args is a {type(args).__name__}: give a tensor, or the arguments as a tuple")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        hint = "; a file is named by path=" if isinstance(kwargs, (str, os.PathLike)) else ""
        raise TypeError(f"kwargs is {kwargs!r:.60}: keyword arguments are given as a dict{hint}")
    return tuple(args), dict(kwargs or {})


@stage("capture")
def _program(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[ExportedProgram, Rung | None]:
    if isinstance(model, ExportedProgram):
        guards.warn_of_fixed_results(model)
        return model, None
    wrong_calls.check_model(model)
    wrong_calls.check_call(model, args, kwargs)
    if not isinstance(model, torch.nn.Module):
        model = FunctionModule(model)
    wrong_calls.check_shapes(model, args, kwargs, dynamic_shapes)
    dynamic_shapes = of_call(model, args, kwargs, dynamic_shapes)
    with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):  # a tree of another form: torch.export tells
        check_names(model, args, kwargs, dynamic_shapes)
    shapes = pytree.tree_map_only(str, lambda _: TorchDim.DYNAMIC, dynamic_shapes)
    args, kwargs = _distinct(args, kwargs)
    if sharded.is_sharded(model):
        model = sharded.piece_of(model, args, kwargs, dynamic_shapes)
    program, rung = ladder.exported(model, args, kwargs, shapes)
    guards.warn_of_fixed_results(program)
    return program, rung


def _distinct(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with a tensor that is given twice copied: torch.export would read one input for both."""
    seen: set[int] = set()

    def copy(t: torch.Tensor) -> torch.Tensor:
        again = id(t) in seen
        seen.add(id(t))
        return t.clone() if again else t

    return pytree.tree_map_only(torch.Tensor, copy, (args, kwargs))


def of_program(
    program: ExportedProgram,
    symbol_names: Mapping[str, str],
    input_names: Sequence[str],
    output_names: Sequence[str],
    of_file: bool = False,
) -> Graph:
    """The graph of a program of torch's with the names of another capture for its symbols."""
    symbols = Symbols(program.range_constraints)
    symbols.rename(symbol_names)
    return graph_of(program, symbols, input_names=input_names, output_names=output_names, of_file=of_file)


# -- for pickle and copy -----------------------------------------------------------------------------------------------


def _taken_apart(context: Capture) -> Any:
    """A capture for pickle and copy: a .pt2 file is read anew, any other program goes along as torch saves it.

    Raises:
        CaptureError: torch cannot save this one.
    """
    names = {str(s): name for s, name in context.bodies.symbols.names.items()}
    if isinstance(context.program, SavedProgram):
        return _reread, (context.program.path, names)
    held = io.BytesIO()
    try:
        torch.export.save(serializable(context.program, warns=False), held)
    except Exception as error:
        raise CaptureError(f"torch cannot save this program, so it is not pickled or copied: {error}") from error
    return _restored, (held.getvalue(), names, context.rung, dict(context.records), context.of_file)


def _restored(
    saved: bytes, names: Mapping[str, str], rung: Rung | None, records: Mapping[str, str], of_file: bool
) -> Any:
    caches.register()
    with torch.serialization.safe_globals(caches.classes()):
        program = torch.export.load(io.BytesIO(saved))
    symbols = Symbols(program.range_constraints)
    symbols.rename(names)
    recorded = unpacked(records[EXTRA]) if EXTRA in records else None
    return graph_of(program, symbols, rung=rung, recorded=recorded, of_file=of_file).context


def _reread(path: Path, names: Mapping[str, str]) -> Any:
    with told(path):
        return _saved(SavedProgram(path), (), {}, None, None, None, names).context


copyreg.pickle(Capture, _taken_apart)
