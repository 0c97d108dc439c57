"""What torch.onnx.export calls otherwise, and what it asks that need not be said here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_ALWAYS = "leave it out: ir.export always"
TORCH_ONNX = {
    "f": "give path=",
    "opset_version": "give opset=",
    "dynamic_axes": "give dynamic_shapes=, by the arguments of forward: {'x': {0: 'batch'}}",
    "verbose": "leave it out, and print(program.graph), or give report='report.md'",
    "dynamo": f"{_ALWAYS} captures by torch.export",
    "fallback": f"{_ALWAYS} captures by torch.export, and says which of its ways the model took",
    "optimize": f"{_ALWAYS} rewrites the graph, in what does not change results",
    "do_constant_folding": f"{_ALWAYS} folds constants",
    "export_params": f"{_ALWAYS} writes the weights; external_data='reference' points to .safetensors files instead",
    "keep_initializers_as_inputs": "leave it out: weights are initializers, and from opset 9 on no inputs",
    "training": "leave it out: the model is captured in the mode that it is in, by model.eval() or model.train()",
    "operator_export_type": "leave it out: an op that the target lacks is refused by name, with the handler to write",
    "export_modules_as_functions": "give functions=True, or the names of the classes",
    "autograd_inlining": "leave it out: an autograd.Function is an op of its own where it has a symbolic or a handler",
    "profile": "give report='report.md'",
    "dump_exported_program": "torch.export.save(program.exported_program, 'model.pt2')",
    "artifacts_dir": "give report='report.md', with its folder",
    "export_type": "leave it out",
}


def refusal(option: str, target: str, known: Sequence[str], own: Sequence[str]) -> str:
    """The sentence for an argument that neither `ir.export` (which has `own`) nor its target (`known`) takes."""
    what = f"neither ir.export nor its target {target!r} has an option {option!r}"
    if option in TORCH_ONNX:
        return f"{what}: {TORCH_ONNX[option]}; the target's own: {', '.join(known)}"
    near = difflib.get_close_matches(option, [*known, *own], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{what}{hint}; the target's own: {', '.join(known)}"
