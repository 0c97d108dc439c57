"""What torch.export says when it refuses a model, as a sentence, the model's own line and the way out.

torch's own text, with its hints on logs and its stack, is the CaptureError's `__cause__`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ir.errors import causes
from ir.importer.fixed_sizes import SIZE, fixing, place
from ir.importer.origins import origin_of
from ir.importer.schema import INSTEAD_OF_QUANTISED
from ir.importer.torch_api import OpOverload, schema_of

_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parents[1]
_LIBRARY = Path(traceback.__file__).parent  # of Python itself; packages may lie below it

_BRANCH = re.compile(r"Could not guard on data-dependent expression (.+?) \(unhinted")
_NUMBER = re.compile(r"Could not extract specialized (\w+) from data-dependent expression (.+?) \(unhinted")
_BY_TYPE = {  # for torch's errors that say no more than the op's name
    "DataDependentOutputException": " gives a Python number that depends on the data; compute with tensors instead",
    "DynamicOutputShapeException": " gives a shape that depends on the data, which torch has no symbols for; write it "
    "with other ops, or as a custom op with a body",
}
_INSTEAD_OF_BRANCH = (
    "write torch.where or torch.cond in place of the branch; where one side always holds, say so before it with "
    "torch._check(...); or give the size from outside, as an argument or a fixed number"
)
_INSTEAD_OF_NUMBER = (
    "compute with the tensor in place of int(), bool() or .item(); where the number is a size, say its range with "
    "torch._check(...), or give it from outside, as an argument or a fixed number"
)
_INSTEAD_OF_PACKED = (
    "run the layer over the padded sequence and mask its results by the lengths; where it is bidirectional, run two "
    "layers, the second over sequences reversed within their lengths (torch.gather), and reverse its results back"
)
_INSTEAD_OF_MASK = (
    "take the places of a mask first, places = mask.nonzero().squeeze(1), say how many there are where other sizes "
    "have to fit them, torch._check(places.shape[0] == ...), and index with them; or keep all elements, by torch.where"
)
_INSTEAD_OF_COMPARISON = (
    "say which it is in the call: is_causal=False takes any mask as it is, True one that is causal (tgt_is_causal= and "
    "src_is_causal= in nn.TransformerDecoder and nn.Transformer)"
)
_INSTEAD_OF_NUMPY = (
    "compute with torch in forward, and what does not depend on the inputs before it, in __init__; or make the part an "
    "op of your own, by ir.custom_op, with a handler for the target"
)
_INSTEAD_OF_START = (
    "take the number out of the tensor first, x.narrow(dim, start.item(), length), or index by start + arange(length)"
)
INSTEAD_OF_GENERATOR = "draw without generator=, or outside of the model, and give the numbers as an input"
_FIXED = re.compile(  # what torch says of a size that the model's code fixes
    rf"You marked {SIZE.pattern} as dynamic but your code specialized it to be a constant \((\d+)\)"
)
_SIGNATURES = re.compile(r",? but expected one of:.*", re.DOTALL)  # every overload that the arguments do not fit
_PYTREE = re.compile(r"\. If this type holds tensors, you need to register a pytree.*", re.DOTALL)  # we say how
_FIXED_NAME = re.compile(  # and of one that a torch.export.Dim names
    r"You marked ((?!L\[).+?) as dynamic but your code specialized it to be a constant \((\d+)\)"
)
_RESIZING = ("aten.resize_", "aten.set_", "aten.unsqueeze_", "aten.squeeze_")  # in place, the number of axes as well
_BOILERPLATE = re.compile(  # what torch writes below its message
    r"\s*\n\s*(For more information|For extended logs|If you suspect|For more debugging|For C\+\+ stack|Caused by: |"
    r"The following call raised|The error above occurred|consider using data-dependent friendly).*",
    re.DOTALL,
)


def asks_for_data(error: BaseException | None) -> bool:
    """True if torch.export stopped at a question about a number that was read out of a tensor."""
    return error is not None and ("data-dependent" in str(error) or "DataDependent" in type(error).__name__)


def missing_fake(error: BaseException | None) -> Any:
    """The operator that torch cannot run on tensors without data, for want of a fake; None where that is not why."""
    unsupported = type(error).__name__ == "UnsupportedOperatorException"
    return getattr(error, "func", None) if unsupported else None


def _fake_of(op: Any) -> str:
    """The lines that register one."""
    schema = schema_of(op)
    names = [a.name for a in schema.arguments]
    like = next((a.name for a in schema.arguments if "Tensor" in str(a.type)), None)
    one = f"torch.empty_like({like})" if like else "torch.empty(...)"
    kinds = [str(r.type) for r in schema.returns]
    parts = [f"[{one}, ...]" if kind.startswith("List") else one if kind == "Tensor" else "..." for kind in kinds]
    body = f"return {', '.join(parts)}" if parts else "return None"
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    says = "" if not parts else "  # results of the right shape and type, without data"
    return (
        "say what it gives, before the export:\n"
        f'    @torch.library.register_fake("{name}")\n    def _({", ".join(names)}):\n        {body}{says}'
    )


def question_about_data(text: str) -> tuple[str, str] | None:
    """What torch says of a number that it read out of a tensor, in a sentence, and what to write instead."""
    if found := _BRANCH.search(text):
        return f"it asks whether {_relation(found[1])}, which depends on the data", _INSTEAD_OF_BRANCH
    if found := _NUMBER.search(text):
        kind = {"integer": "a Python integer", "float": "a Python float"}.get(found[1], "a Python number")
        return f"it takes {kind} out of a tensor ({found[2]}), which depends on the data", _INSTEAD_OF_NUMBER
    return None


def told(error: Exception) -> str:
    """The refusal in a sentence, with the model's line and what to write instead."""
    text, lines_of_sizes = str(error), []
    if op := missing_fake(error):
        said = f"{schema_of(op).name} has no fake, so torch does not know the shapes of its results"
        way = _fake_of(op)
    elif _compares_mask(error):
        said, way = "it asks whether a mask is the causal one, which depends on the data", _INSTEAD_OF_COMPARISON
    elif question := question_about_data(text):
        said, way = question
    elif fixed := _fixed(text):
        said, way = (
            f"its code fixes sizes that dynamic_shapes calls dynamic ({', '.join(fixed)})",
            "leave them out there, or write the line with operators that take sizes as they come",
        )
        lines_of_sizes = list(fixing(error, is_own))
    elif "Pending unbacked symbols" in text and _raised_by(error, "aten::narrow"):
        said, way = "narrow begins where a tensor says, and torch loses track of that number", _INSTEAD_OF_START
    elif "Pending unbacked symbols" in text:
        said, way = "an op takes as many elements as data decides, and torch loses track of how many", _INSTEAD_OF_MASK
    elif ".numpy() is not supported" in text:
        said, way = "numpy reads a tensor (.numpy()), and torch traces its own operators alone", _INSTEAD_OF_NUMPY
    elif "torch._C.Generator'>" in text:  # so until torch 2.12, and the next until 2.11
        said, way = "it draws from a torch.Generator, which has no form in the IR", INSTEAD_OF_GENERATOR
    elif "quantized nyi in meta tensors" in text:
        said, way = "it makes a quantised tensor, which has no form in the IR", INSTEAD_OF_QUANTISED
    elif _of_packed_sequence(error):
        said, way = "a packed sequence has sizes that its data decides", _INSTEAD_OF_PACKED
    elif found := _of_bookkeeping(error):
        said, way = found
    else:
        plain = _PYTREE.sub("", _SIGNATURES.sub("", _BOILERPLATE.sub("", text)))
        said, way = f"{plain}{_BY_TYPE.get(type(error).__name__, '')}{_registration(error)}", ""
    lines = [f"torch.export refused the model: {said}", *own_line(error), *lines_of_sizes, *([way] if way else ())]
    return "\n  ".join(lines) + _notes(error)


def _fixed(text: str) -> list[str]:
    """What sizes the model's code fixes, each in words."""
    return [
        *(f"the axis {axis} of {name}{way} is {size} whatever comes" for name, way, axis, size in _FIXED.findall(text)),
        *(f"{name} is {size} whatever comes" for name, size in _FIXED_NAME.findall(text)),
    ]


def first_line(error: Exception | str) -> str:
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0].partition(' (unhinted')[0] if lines else type(error).__name__:.300}"


def _relation(text: str) -> str:
    """`Eq(u0, 1)` as Python writes it."""
    found = re.fullmatch(r"(Eq|Ne)\((.*), ([^,()]*)\)", text)
    return f"{found[2]} {'==' if found[1] == 'Eq' else '!='} {found[3]}" if found else text


def own_line(error: BaseException) -> Iterator[str]:
    """The innermost line that is neither torch's nor ours."""
    while error.__traceback__ is None and error.__cause__ is not None:
        error = error.__cause__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame):
            yield f"at {place(frame)}"
            return


def _of_bookkeeping(error: BaseException) -> tuple[str, str] | None:
    """What errors of torch's own notes of sizes come from, which say a key or an index alone, and the way out."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, KeyError) and error.args == ("max",):
        return (
            "it takes sizes that are computed from a torch.export.Dim only with the greatest that this may be",
            "give the Dim one: torch.export.Dim(name, min=..., max=...)",
        )
    if isinstance(error, IndexError) and frames and frames[-1].f_code.co_name == "produce_guards_verbose":
        graphs = [g for f in frames for g in list(f.f_locals.values()) if isinstance(g, torch.fx.GraphModule)]
        places = [str(origin_of(n)) for g in graphs for n in g.graph.nodes if str(n.target).startswith(_RESIZING)]
        line = f"\n  at {places[0]}" if places else ""
        return (
            f"the model gives an argument another number of axes in place{line}",
            "work on a copy, x = x.clone(), or make a new tensor with x.reshape(...)",
        )
    return None


def _raised_by(error: BaseException, op: str) -> bool:
    """True if the error came up while torch traced a call of this operator."""
    called = (frame.f_locals.get("func") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(f, OpOverload) and schema_of(f).name == op for f in called)


def _of_packed_sequence(error: BaseException) -> bool:
    """True if torch's recurrent layers, or its functions of packed sequences, failed over one."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if Path(f.f_code.co_filename).name == "rnn.py"]
    kind = torch.nn.utils.rnn.PackedSequence
    return any(isinstance(held, kind) for f in frames for held in list(f.f_locals.values()))


def _compares_mask(error: BaseException) -> bool:
    """True if torch's transformer layers stopped where they compare a mask with the causal one."""
    while error.__traceback__ is None and error.__cause__ is not None:
        error = error.__cause__
    return any(f.f_code.co_name == "_detect_is_causal_mask" for f, _ in traceback.walk_tb(error.__traceback__))


def is_own(frame: traceback.FrameSummary) -> bool:
    """True for a line of the model: neither torch's nor ours, nor Python's own as that of a context manager."""
    parents = Path(frame.filename).parents
    if _LIBRARY in parents and not {"site-packages", "dist-packages"} & {p.name for p in parents}:
        return False
    return not frame.filename.startswith("<") and _TORCH not in parents and _OURS not in parents


def _registration(error: Exception) -> str:
    """The lines that make a pytree of a class that torch.export does not know."""
    found = re.search(r"<class '(\S+)'>", str(error))
    if found is None or "pytree" not in str(error):
        return ""
    module, _, name = found[1].rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if dataclasses.is_dataclass(cls):
        lines = f"torch.export.register_dataclass({name})"
    else:
        held = list(inspect.signature(cls).parameters) if isinstance(cls, type) else ["a", "b"]
        parts = ", ".join(f"c.{p}" for p in held)
        lines = (
            "torch.utils._pytree.register_pytree_node(\n"
            f"        {name}, lambda c: ([{parts}], None), lambda parts, _: {name}(*parts),\n"
            f"        serialized_type_name={found[1]!r},\n    )"
        )
    return f"\n  say which tensors a {name} holds, before the export:\n    import torch\n    {lines}"


def _notes(error: BaseException) -> str:
    """What was noted at the error, or at one that it came from."""
    notes = next((n for e in causes(error) if (n := getattr(e, "__notes__", []))), [])
    return "".join(f"\n  {note}" for note in dict.fromkeys(notes))


def in_transform(error: BaseException) -> bool:
    """True if the error was raised inside of a transform of torch.func, or about one of its tensors."""
    files = (Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = "apis", "eager_transforms", "vmap"
    return any(f.parent.name == "_functorch" and f.stem in modules for f in files) or "functorch tensor" in str(error)
