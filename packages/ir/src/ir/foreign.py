"""What torch.onnx.export and other exporters call otherwise, and what they ask that need not be said here."""

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
OTHERS = {  # Optimum, Ultralytics and torch-to-nnef
    "atol": "give verify=True, or compare with program.verify(atol=...)",
    "rtol": "give verify=True, or compare with program.verify(rtol=...)",
    "check_io": "give verify=True",
    "half": "give dtype='float16'",
    "fp16": "give dtype='float16'",
    "int8": "quantise the model first, by torchao.quantization.quantize_",
    "quantize": "quantise the model first, by torchao.quantization.quantize_",
    "simplify": f"{_ALWAYS} rewrites the graph, in what does not change results",
    "dynamic": "give dynamic_shapes=, by the arguments of forward: {'x': {0: 'batch'}}",
    "imgsz": "give an example of that size",
    "batch_size": "give an example of that size",
    "format": "give target=",
    "inference_target": "give target=",
    "file_path_export": "give path=",
    "output": "give path=",
    "filename": "give path=",
}


def refusal(option: str, target: str, known: Sequence[str], own: Sequence[str]) -> str:
    """The sentence for an argument that neither `ir.export` (which has `own`) nor its target (`known`) takes."""
    what = f"neither ir.export nor its target {target!r} has an option {option!r}"
    if said := TORCH_ONNX.get(option) or OTHERS.get(option):
        return f"{what}: {said}; the target's own: {', '.join(known)}"
    near = difflib.get_close_matches(option, [*known, *own], 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{what}{hint}; the target's own: {', '.join(known)}"
