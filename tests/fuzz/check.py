"""One program on several targets, compared with ExportedProgram.module(): equal, refused, wrong, or a foreign error."""

from __future__ import annotations

import contextlib
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

import ir
from tests.fuzz.explained import explained
from tests.fuzz.program import TRACED, Program, Sizes
from tests.fuzz.rounding import after, close, restore
from tests.fuzz.undefined import is_shapeless

TARGETS = ("onnx", "nnef", "eager")
REFUSALS = (ir.UnsupportedOpsError, ir.RefusedError, ir.CaptureError)
NO_FORM = ("which torch leaves undefined", "changes the sizes or strides of")
DRAWS = 8  # of inputs, at which a program that is not the model should show it
WAYS = ("program", "program", "module", "file")  # how the program is handed to ir


@dataclass(frozen=True)
class Outcome:
    """What a target made of a program: `kind` is "equal", "decomposed" (as torch's own decomposition has it, where its
    kernel differs from that), "refused", "specialized" (refused at a size where torch's program is not the model),
    "wrong", "foreign", or torch's own no: "invalid" where torch.export refuses the program, "banned" where it has no
    functional form."""

    target: str
    kind: str
    detail: str = ""
    sizes: Sizes | None = None


def exported(program: Program) -> torch.export.ExportedProgram | None:
    """torch's own capture; None where torch refuses the program."""
    try:
        module, args = program.module(), program.args()
        with torch.no_grad():
            module(*[a.clone() for a in args])
        return torch.export.export(program.module(), args, dynamic_shapes=program.shapes(torch.export.Dim.DYNAMIC))
    except Exception:
        return None


def check(program: Program, targets: Sequence[str] = TARGETS, way: str = "program") -> Iterator[Outcome]:
    """An outcome for each target, or one "invalid"."""
    warnings.simplefilter("ignore")
    reference = exported(program)
    if reference is None:
        yield Outcome("torch", "invalid")
        return
    try:
        graph = ir.check(captured(program, reference, way))
    except ir.ExportError as error:
        kind = "refused" if isinstance(error, REFUSALS) else "foreign"
        undefined = any(said in str(error) for said in NO_FORM)
        if isinstance(error, ir.CaptureError) and (undefined or not functionalised(reference)):
            kind = "banned"
        yield from (Outcome(t, kind, f"capture ({way}): {_message(error)}") for t in targets)
        return
    except Exception as error:
        yield from (Outcome(t, "foreign", f"capture ({way}): {_message(error)}") for t in targets)
        return
    module = reference.module()
    before = _state(module)
    for target in targets:
        restore(module, before)  # a graph may read the very tensors that the module writes to
        yield on_target(program, reference, module, graph, target, before)


def run(program: Program) -> None:
    """The program in torch at all its sizes, whatever becomes of it."""
    for seed, sizes in enumerate(program.all_sizes()):
        with contextlib.suppress(Exception), torch.no_grad():
            program.module()(*program.args(sizes, seed))


def functionalised(reference: torch.export.ExportedProgram) -> bool:
    """False where torch bans a program from its functional form, as it does for inputs that change their sizes."""
    try:
        reference.run_decompositions({})
    except Exception:
        return False
    return True


def captured(program: Program, reference: torch.export.ExportedProgram, way: str) -> ir.Graph:
    if way == "module":
        return ir.capture(program.module(), program.args(), dynamic_shapes=program.shapes(torch.export.Dim.DYNAMIC))
    if way == "file":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "program.pt2")
            try:
                torch.export.save(reference, path)
            except Exception:  # torch's own writer has no form for it
                return ir.capture(reference)
            return ir.capture(path)
    return ir.capture(reference)


def on_target(
    program: Program,
    reference: torch.export.ExportedProgram,
    module: torch.nn.Module,
    graph: ir.Graph,
    target: str,
    before: Mapping[str, Tensor],
) -> Outcome:
    sizes: Sizes = TRACED
    kind, args = "equal", program.args()
    try:
        artifact = ir.export(graph, target=target)
        for seed, sizes in enumerate(program.all_sizes()):
            if target != "eager":  # whose programs keep what they write, as the module does
                restore(module, before)
            args = program.args(sizes, seed)
            args = in_columns(module, args) if seed == 1 else args
            wrong, args = _compared(module, artifact, graph, args, program.module())
            if wrong and _keeps_its_state(graph) and not compare(decomposed(reference), artifact, graph, args):
                kind = "decomposed"
            elif wrong:
                return Outcome(target, "wrong", f"{wrong} at {dict(sizes)}", sizes)
    except REFUSALS as error:
        drawn = [args, *(program.args(sizes, seed) for seed in range(DRAWS))]
        kind = "refused" if all(_is_the_model(program, module, a, before) for a in drawn) else "specialized"
        return Outcome(target, kind, _message(error), sizes)
    except Exception as error:
        return Outcome(target, "foreign", _message(error), sizes)
    return Outcome(target, kind)


def in_columns(module: torch.nn.Module, args: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same numbers column after column in memory; as they are where torch's program has no view of such ones."""
    turned = [t.mT.contiguous().mT if t.dim() > 1 else t for t in args]
    state = _state(module)
    try:
        with torch.no_grad():
            module(*[t.clone() for t in turned])
    except Exception:
        return args
    finally:
        restore(module, state)
    return turned


def _compared(
    module: torch.nn.Module, artifact: Any, graph: ir.Graph, args: Sequence[Tensor], model: torch.nn.Module
) -> tuple[str, Sequence[Tensor]]:
    """What differs, and the arguments: contiguous ones where the program is refused for others."""
    state = _state(module)
    try:
        return compare(module, artifact, graph, args, model), args
    except ir.RefusedError as error:
        if "has strides" not in str(error):
            raise
    restore(module, state)
    args = [t.contiguous() for t in args]
    return compare(module, artifact, graph, args, model), args


def _state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in (*module.named_buffers(), *module.named_parameters())}


def _is_the_model(
    program: Program, module: torch.nn.Module, args: Sequence[Tensor], before: Mapping[str, Tensor]
) -> bool:
    """Whether torch's own program gives what the model gives; it holds for sizes from 2 on.

    At some numbers the two agree by chance: a comparison with a size.
    """
    restore(module, before)
    try:
        with torch.no_grad():
            made, asked = (fn(*[a.clone() for a in args]) for fn in (module, program.module()))
    except Exception:  # torch refuses the arguments
        return True
    pairs = zip(pytree.tree_leaves(made), pytree.tree_leaves(asked), strict=True)
    return not any(_differs(*pair) for pair in pairs)


def _keeps_its_state(graph: ir.Graph) -> bool:
    """True if no call leaves something behind in a buffer, so that a second one is as the first."""
    return set(graph.updates) <= set(graph.structure.input_names)


def decomposed(reference: torch.export.ExportedProgram) -> torch.nn.Module:
    """The program in torch's core operators: another reference where a kernel differs from its own definition.

    At nan, infinity and the largest numbers some kernels do, by size and processor: attention's gives 0 for a row of
    nan up to some length, a mean beside a variance is nan or infinity.
    """
    return reference.run_decompositions().module()


def compare(
    module: Any, artifact: ir.Exported, graph: ir.Graph, args: Sequence[Tensor], model: torch.nn.Module | None = None
) -> str:
    """Empty if every result and all that was written equals torch's, or torch does not take the arguments.

    A result may be the model's own, too: torch's exported program has formulas for sizes, which hold from 2 on.
    """
    names = graph.structure.input_names
    state = _state(module)
    given = [a.clone() for a in args]
    try:
        with torch.no_grad():
            expected = module(*given)
    except Exception:
        restore(module, state)
        return ""
    if [g.shape for g in given] != [a.shape for a in args]:
        restore(module, state)  # torch.export bans that, but sees it at the sizes of the trace alone: t_() behind diff
        return ""
    expected, given = pytree.tree_map(_copied, (expected, given))
    written = {k: v.clone() for k, v in after(module, names, given).items()}
    mine = [a.clone() for a in args]
    try:
        actual, updates = artifact.run(*mine)
    except REFUSALS:
        raise
    except Exception:
        if is_shapeless(module, args):
            return ""
        raise
    (ours, spec), (theirs, wanted) = pytree.tree_flatten(actual), pytree.tree_flatten(expected)
    if spec != wanted:
        return f"structure {spec} for {wanted}"
    pairs: list[tuple[int | str, Any, Any]] = list(zip(range(len(ours)), ours, theirs, strict=True))
    pairs += [(name, updates[name], written[name]) for name in updates]
    lost = [
        k for k, v in written.items()
        if k not in updates and not bool(close(v, {**state, **dict(zip(names, mine, strict=True))}[k]).all())
    ]  # fmt: skip
    if lost:
        return f"a write to {', '.join(lost)} is lost"
    said = [n.meta.get("val") for n in pytree.tree_leaves(module.graph.output_node().args) if hasattr(n, "meta")]
    for place, a, e in pairs:
        v = said[place] if isinstance(place, int) and len(said) == len(theirs) else None
        if isinstance(e, Tensor) and isinstance(v, Tensor) and isinstance(a, Tensor) and a.dtype != e.dtype:
            e = e.to(v.dtype)  # torch's kernels give some another type where there are no elements: trapz
        wrong = _differs(a, e)
        if wrong and isinstance(a, Tensor) and isinstance(e, Tensor) and a.dtype == e.dtype:
            later = {k: v.detach().clone() for k, v in (*module.named_buffers(), *module.named_parameters())}
            restore(module, state)
            try:
                if explained(module, names, args, place, a, e, artifact.target.name == "onnx"):
                    continue
            finally:
                restore(module, later)
        if wrong and model is not None and isinstance(place, int):
            wrong = _differs(a, pytree.tree_leaves(model(*[x.clone() for x in args]))[place])
        if wrong:
            return f"result {place}: {wrong}"
    return ""


def _copied(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def _differs(a: Any, e: Any) -> str:
    if not isinstance(e, Tensor):
        return "" if type(a) is type(e) and (a == e or a != a) else f"{a!r} for {e!r}"
    if not isinstance(a, Tensor):
        return f"a {type(a).__name__} for a tensor"
    if a.dtype != e.dtype or a.shape != e.shape:
        return f"{a.dtype}{list(a.shape)} for {e.dtype}{list(e.shape)}"
    same = close(a, e)
    if bool(same.all()):
        return ""
    at = int((~same).flatten().nonzero()[0])
    return (
        f"{int((~same).sum())} of {e.numel()} {e.dtype} differ, {a.flatten()[at].item()} for {e.flatten()[at].item()}"
    )


def _message(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ir.ExportError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/packages/" in f.filename] or frames[-1:]
    place = ours[-1]
    return f"{text} [{Path(place.filename).name}:{place.lineno} {place.name}]"
