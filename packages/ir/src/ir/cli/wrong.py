"""Wrong calls: what stands on the command line cannot be, whatever the model is. The exit code is 2."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ir.errors import CaptureError, ExportError, OutputError, PluginError, UnknownName


class WrongCall(CaptureError):
    """One sentence about the command line, with what to write instead."""


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Inside of the block the command line alone is looked at: what is refused there is a wrong call.

    Raises:
        WrongCall: in place of an ExportError; not for a target that is broken or not installed.
    """
    try:
        yield
    except PluginError:
        raise
    except ExportError as error:
        raise WrongCall(str(error)) from error


def is_wrong_call(error: BaseException) -> bool:
    """Whether an error is about the command line: a target's name stands only there, and where a file is to go.

    What the disk refuses later, as one that is full, has another number of the system's.
    """
    if isinstance(error, OutputError):
        return error.errno in (None, errno.ENOENT)
    return isinstance(error, (WrongCall, UnknownName))


# What other exporters call an option, and what to write here. `opset_version` is read as `--opset-version`.
_ELSEWHERE = {
    "--format": "--target",
    "--framework": "--target",
    "--model": "the model as the first word, without an option",
    "-m": "the model as the first word, without an option",
    "--opset-version": "--opset",
    "--half": "--dtype float16",
    "--fp16": "--dtype float16",
    "--bf16": "--dtype bfloat16",
    "--int8": "--quantize int8",
    "--dynamic": "--input 'x=float32[batch,3,224,224]', where a name is a dynamic dimension",
    "--dynamic-axes": "--input 'x=float32[batch,3,224,224]', where a name is a dynamic dimension",
    "--dynamic-shapes": "--input 'x=float32[batch,3,224,224]', where a name is a dynamic dimension",
    "--imgsz": "--input 'x=float32[1,3,640,640]'",
    "--batch": "--input 'x=float32[8,3,224,224]'",
    "--batch-size": "--input 'x=float32[8,3,224,224]'",
    "--shape": "--input 'x=float32[1,3,224,224]'",
    "--input-shape": "--input 'x=float32[1,3,224,224]'",
    "--input-names": "--input NAME=DTYPE[SIZES]",
    "--precision": "--dtype",
    "--out": "--output",
    "--output-dir": "--output FOLDER",
    "--out-dir": "--output FOLDER",
    "--name": "--output",
    "--provider": "--option providers=CUDAExecutionProvider",
    "--providers": "--option providers=CUDAExecutionProvider",
    "--device": "--option providers=CUDAExecutionProvider with -t onnx, --option device=cuda with -t eager",
    "--simplify": "nothing: the graph is always simplified",
    "--optimize": "nothing: what does not change results is always rewritten",
    "--verbose": "nothing: ir show prints the graph",
    "--trust-remote-code": "module:callable, of a function that loads such a checkpoint",
    "--cache-dir": "transformers:FOLDER, of a checkpoint that is downloaded",
}


def elsewhere(option: str) -> str:
    """What to write for an option of another exporter, empty where none has it."""
    said = _ELSEWHERE.get(option.replace("_", "-"), "")
    return f"; write {said}" if said else ""
