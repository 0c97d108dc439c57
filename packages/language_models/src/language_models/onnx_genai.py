"""ONNX: the folder that onnxruntime-genai runs, and the same file in onnxruntime by our own loop.

    model.onnx, model.onnx.data    one step of the decoder; inputs and outputs by onnxruntime-genai's names
    genai_config.json              what onnxruntime-genai reads; not there where it cannot hold what the model remembers
    tokenizer.json, ...            as the checkpoint has them

Names and settings: onnxruntime-genai, src/config.h and src/models/, version 0.18.
"""

from __future__ import annotations

import ctypes
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 after it)
import numpy as np
import onnx_ir

import ir
from ir.errors import ExportError, RuntimeFailure
from language_models import experts, moe
from language_models import group_query_attention as gqa
from language_models.checkpoint import Checkpoint
from language_models.contract import GENAI
from language_models.decoding import Arrays, Generator
from language_models.folder import Manifest, load_call, no_export
from language_models.packing import packed
from language_models.references import WEIGHTS_FOLDER, weights_elsewhere
from language_models.step import GROWING
from language_models.tracing import of_graph, traced
from language_models.weights import Plan, quantise

FILE = "model.onnx"
CONFIG = "genai_config.json"
WEIGHTS = ("f32", "f16", "bf16", "int8", "int4")
ROUNDED = ("f32", "int8", "int4")  # the arithmetic of float32
EXACT = {"accuracy_level": 1}  # products with int4 and int8 weights in float32
LEVEL = "session.qdq_matmulnbits_accuracy_level"
BLOCKS = 21  # the opset that has scales by block
FEW_BITS = {"opset": BLOCKS}  # options of ir.export for weights in few bits
_DRAWING = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")


def rounds_experts(options: Mapping[str, Any]) -> bool:
    """True if an export with these options can have experts in few bits."""
    return bool(options.get("contrib")) and options.get("external_data") != "reference"


def quantised(model: Any, plan: Plan) -> dict[str, Any]:
    """Put layers of few bits into the model; no options of its export follow."""
    quantise(model, plan)
    return {}


def write(
    checkpoint: Checkpoint, folder: Path, *, last: bool, weights: str, accuracy_level: int = 4, contrib: bool = False,
    opset: int | None = None, weights_folder: str = "", **options: Any,
) -> Manifest:  # fmt: skip
    """Write the model and its configuration into a folder; `weights_folder` is the way from there to weights that stay
    where they are.

    With `contrib`, attention is GroupQueryAttention where it can be, and a warning says why where it cannot; experts in
    float32 are MoE, those in few bits QMoE.

    Raises:
        ExportError: the model cannot be exported; see ir.errors.
        ValueError: the opset lacks what these weights, or the rotary embeddings of `contrib`, are written with; or
            `contrib` has no kernel for the weights.
    """
    if contrib and weights == "bf16":
        raise ValueError(
            "contrib=True has no kernel for bf16 in onnxruntime on the CPU: take weights f16, or leave it out"
        )
    blocks = {"opset": BLOCKS} if weights.startswith("int") else {}
    needed = {"opset": gqa.OPSET} if contrib else blocks
    if isinstance(opset, int) and opset < needed.get("opset", opset):
        what = "contrib=True" if contrib else f"weights={weights!r}"
        raise ValueError(f"{what} is written with opset {needed['opset']} or newer, not {opset}: leave opset= out")
    stack = options.get("external_data") != "reference"
    with experts.own_experts(checkpoint.model) if contrib and stack and weights in ROUNDED else nullcontext():
        made = _with_grouped_attention(checkpoint, last, weights, stack) if contrib else None
        if made is None:
            made, needed = traced(checkpoint, GENAI, last, "onnx", weights), blocks
    graph, manifest = made
    if contrib:
        graph = experts.mixtures(graph, moe.MIXTURE, moe.as_moe)
        own = of_graph({**gqa.HANDLERS, **moe.HANDLERS}, graph)
        options["handlers"] = {**own, **(options.get("handlers") or {})}
    options = {**needed, **options} if opset is None else {**options, "opset": opset}
    if weights_folder:
        options["weights_folder"] = checkpoint.folder
    ir.export(graph, target="onnx", path=folder / FILE, **{"external_data": True, **options})
    manifest = replace(manifest, weights_folder=weights_folder)
    if held_by_genai(manifest):
        said = config(checkpoint, manifest, accuracy_level)
        # onnxruntime-genai reads no \\u escapes, which paths and names in other scripts would have
        (folder / CONFIG).write_text(json.dumps(said, indent=2, ensure_ascii=False), encoding="utf-8")
    return replace(manifest, step=FILE)


def _with_grouped_attention(
    checkpoint: Checkpoint, last: bool, weights: str, stack: bool
) -> tuple[Any, Manifest] | None:
    """What `traced` gives, of a model whose attention is one op a layer; None if that is not the model's own."""
    model = checkpoint.model
    try:
        graph, manifest = traced(checkpoint, GENAI, last, "onnx", weights, kind=gqa.GroupQueryStep)
        gqa.check(model, checkpoint.context_length)
    except ExportError as error:
        warnings.warn(f"{type(model).__name__} is written without GroupQueryAttention: {error}", stacklevel=2)
        return None
    graph = packed(gqa.rotary_of_rows(graph), GENAI.positions, manifest.context_length, stack)
    positions = manifest.positions and any(v.name == GENAI.positions for v in graph.inputs)
    return graph, replace(manifest, positions=positions)


def held_by_genai(manifest: Manifest) -> bool:
    """True if what the model remembers is keys and values of one width, which is what onnxruntime-genai holds."""
    widths = {s.shape[-1] for s in manifest.states}
    return len(widths) == 1 and all(s.name.rpartition(".")[2] in GROWING for s in manifest.states)


def config(checkpoint: Checkpoint, manifest: Manifest, accuracy_level: int) -> dict[str, Any]:
    """The contents of genai_config.json."""
    entries = {LEVEL: str(accuracy_level)} if manifest.weights.startswith("int") else {}
    entries |= {WEIGHTS_FOLDER: manifest.weights_folder} if manifest.weights_folder else {}
    keys = [s for s in manifest.states if s.name.endswith(".key")]
    _, heads, _, width = keys[0].shape
    own, drawing = checkpoint.config, checkpoint.generation
    named = (getattr(c, "pad_token_id", None) for c in (drawing, own))
    padding = next((p for p in named if p is not None and 0 <= p < manifest.vocabulary), manifest.pad)
    ends = _ends(checkpoint, manifest, padding)
    positions = {"position_ids": GENAI.positions} if manifest.positions else {}
    inputs = {"input_ids": GENAI.tokens, "attention_mask": GENAI.mask, **positions}
    remembered = {"key_names": "key", "value_names": "value"}
    inputs |= {f"past_{n}": GENAI.remembered_in.format(layer="%d", part=p) for n, p in remembered.items()}
    outputs = {"logits": GENAI.logits}
    outputs |= {f"present_{n}": GENAI.remembered_out.format(layer="%d", part=p) for n, p in remembered.items()}
    longest = manifest.computed_anew or manifest.context_length  # its loop never reads a text again
    drawn = {n: v for n in _DRAWING if (v := getattr(drawing, n, None)) is not None}
    return {
        "model": {
            "type": "decoder",
            "vocab_size": manifest.vocabulary,
            "context_length": longest,
            "bos_token_id": drawing.bos_token_id or 0,
            "eos_token_id": ends[0] if len(ends) == 1 else ends,
            "pad_token_id": padding,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": [], **entries},
                "filename": FILE,
                "head_size": width,
                "hidden_size": own.hidden_size,
                "num_attention_heads": own.num_attention_heads,
                "num_key_value_heads": heads,
                "num_hidden_layers": own.num_hidden_layers,
                "inputs": inputs,
                "outputs": outputs,
            },
        },
        # GroupQueryAttention has its past and present in one buffer
        "search": {"max_length": longest, "past_present_share_buffer": manifest.padding_side == "right", **drawn},
    }


def _ends(checkpoint: Checkpoint, manifest: Manifest, padding: int) -> list[int]:
    """The tokens that end a text; onnxruntime-genai has to have one: without one in the settings it is that of the
    configuration, or the padding.
    """
    told = getattr(checkpoint.config, "eos_token_id", None)
    own = told if isinstance(told, (list, tuple)) else [] if told is None else [told]
    found, behind = ([e for e in ends if 0 <= e < manifest.vocabulary] for ends in (manifest.eos, own))
    if not found:
        where = f"that of config.json, {behind}" if behind else f"the padding, {padding}"
        warnings.warn(
            f"the generation settings of {checkpoint.name} say of no token that it ends a text, and onnxruntime-genai "
            f"has to have one: it ends a text at {where}, where language_models.load goes on as transformers does; set "
            "generation_config.eos_token_id",
            stacklevel=4,
        )
    return found or behind or [padding]


def load(
    folder: Path, manifest: Manifest, accuracy_level: int = 4, checkpoint: str | os.PathLike[str] | None = None
) -> Generator:
    """The model in onnxruntime alone, whatever it remembers; `checkpoint` is the folder of weights that lie elsewhere.

    Raises:
        CaptureError: weights lie elsewhere, and `checkpoint` is not given: a file does not say what else is read.
        RuntimeFailure: onnxruntime does not load it.
    """
    import onnxruntime

    there = weights_elsewhere(folder, manifest.weights_folder, checkpoint)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(LEVEL, str(accuracy_level))
    if there is not None:
        options.add_session_config_entry(WEIGHTS_FOLDER, str(there))
    try:
        session = onnxruntime.InferenceSession(str(folder / manifest.step), options, ["CPUExecutionProvider"])
    except Exception as error:
        raise RuntimeFailure(f"onnxruntime does not load {folder / manifest.step}: {error}") from error
    names = [o.name for o in session.get_outputs()]
    taken = {i.name: i.shape for i in session.get_inputs()}
    contract, given_back = manifest.contract, {s.given: s.result for s in manifest.states}
    others = {contract.tokens, contract.mask, contract.positions}
    held = {n: shape for n, shape in taken.items() if n not in others}
    manifest.check(folder, [held.pop(n, ()) for n in given_back] + [*held.values()])
    if not {contract.logits, *given_back.values()} <= {*names}:
        raise no_export(folder, ValueError(f"it does not describe {manifest.step}"))

    def run(feeds: Arrays) -> Arrays:
        given = {n: a for n, a in feeds.items() if n in taken}
        if manifest.weights == "bf16":
            values = session.run_with_ort_values(names, {n: _value(a) for n, a in given.items()})
            return dict(zip(names, map(_array, values), strict=True))
        return dict(zip(names, session.run(names, given), strict=True))

    return Generator(manifest, run)


def _value(array: Any) -> Any:
    """An array as onnxruntime's value, which knows of numpy's own types alone."""
    from onnxruntime import OrtValue

    if array.dtype != "bfloat16":
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    bits = np.ascontiguousarray(array).view(np.uint16)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_ir.DataType.BFLOAT16.value)


def _array(value: Any) -> Any:
    if value.element_type() != onnx_ir.DataType.BFLOAT16.value:
        return value.numpy()
    size = value.tensor_size_in_bytes()
    held = (ctypes.c_char * size).from_address(value.data_ptr()).raw if size else b""
    return np.frombuffer(held, "bfloat16").reshape(value.shape())


def usage(folder: Path, manifest: Manifest) -> str:
    """Lines of Python that generate from the folder."""
    if not held_by_genai(manifest):
        return f"import language_models\n{load_call(folder, manifest.weights_folder)}.generate(input_ids)"
    return (
        "import onnxruntime_genai as og\n"
        f"model = og.Model({str(folder)!r})\n"
        "tokenizer, params = og.Tokenizer(model), og.GeneratorParams(model)\n"
        "params.set_search_options(max_length=64, do_sample=False)\n"
        "generator = og.Generator(model, params)\n"
        'generator.append_tokens(tokenizer.encode("Once upon a time"))\n'
        "while not generator.is_done():\n"
        "    generator.generate_next_token()\n"
        "print(tokenizer.decode(generator.get_sequence(0)))"
    )
