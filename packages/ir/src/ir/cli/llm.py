"""`ir llm`: a checkpoint of transformers to a folder that generates text in its runtime."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table

from ir.cli.printing import Console
from ir.errors import CaptureError
from ir.progress import listening

# ruff: noqa: UP045 - typer reads Optional


def llm(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="the folder of a transformers model: config.json, *.safetensors"),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="the folder to write")],
    target: Annotated[
        str, typer.Option("--target", "-t", help="onnx (onnxruntime-genai), nnef (tract), eager (torch)")
    ] = "onnx",
    weights: Annotated[str, typer.Option("--weights", "-w", help="f32, f16, bf16, int8, int4")] = "f32",
    lm_head: Annotated[
        Optional[str], typer.Option("--lm-head", help="int8 or f32 for the layer of logits alone")
    ] = None,
    exclude: Annotated[
        Optional[list[str]],
        typer.Option("--exclude", metavar="PATTERN", help="layers that stay float, as *.down_proj; repeatable"),
    ] = None,
    calibration: Annotated[
        Optional[Path],
        typer.Option("--calibration", metavar="FILE", help="a text on which int4 and int8 are calibrated (GPTQ)"),
    ] = None,
    text: Annotated[
        Optional[Path],
        typer.Option("--text", metavar="FILE", help="a text on which the loss against float weights is measured"),
    ] = None,
    logits: Annotated[str, typer.Option("--logits", help="last (of the last position), or all")] = "last",
    task: Annotated[
        Optional[str],
        typer.Option(
            "--task",
            help="text-generation, text2text-generation, feature-extraction (embeddings), ...; by "
            "default the checkpoint's own",
        ),
    ] = None,
    pooling: Annotated[
        Optional[str], typer.Option("--pooling", help="mean, cls or last: embed texts, one vector each")
    ] = None,
    normalise: Annotated[
        Optional[bool], typer.Option("--normalise/--no-normalise", help="embeddings of unit length")
    ] = None,
    contrib: Annotated[
        bool, typer.Option("--contrib/--no-contrib", help="onnx: attention and experts as onnxruntime's own ops")
    ] = False,
    external_data: Annotated[
        Optional[str],
        typer.Option("--external-data", help='onnx: "reference" leaves weights in the files of the checkpoint'),
    ] = None,
    tokenizer: Annotated[
        bool, typer.Option("--tokenizer/--no-tokenizer", help="the checkpoint has to have one")
    ] = True,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="generate tokens from the folder and compare them with torch's")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no summary")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", hidden=True)] = False,
) -> None:
    """Export a language model: a folder that generates text, and the lines that do so."""
    from ir.cli.progress import Stages  # it imports torch, which help does without

    library = _library()
    start = time.perf_counter()
    try:
        with listening(Stages(Console(stderr=True, quiet=quiet))):
            made = library.export(
                checkpoint,
                path=output,
                target=target,
                weights=weights,
                lm_head=lm_head,
                exclude=exclude or (),
                calibration=_text(calibration),
                text=_text(text),
                logits=logits,
                task=task,
                tokenizer=tokenizer,
                verify=verify,
                **{
                    name: value
                    for name, value in (
                        ("pooling", pooling),
                        ("normalise", normalise),
                        ("contrib", contrib or None),
                        ("external_data", external_data),
                    )
                    if value is not None
                },
            )
    except ValueError as error:
        option, found, rest = str(error).partition("=")
        if not found or not option.isidentifier():
            raise
        raise typer.BadParameter(f"--{option.replace('_', '-')}={rest}") from error

    if not quiet:
        _show(made, time.perf_counter() - start)


def _text(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is no text: {error}") from error


def _library() -> Any:
    try:
        return importlib.import_module("language_models")
    except ImportError as error:
        raise CaptureError(f"{error}: pip install ./packages/language_models of this project's checkout") from error


def _show(made: Any, seconds: float) -> None:
    table = Table("", made.manifest.target, show_edge=False, pad_edge=False)
    for name, value in {**made.summary(), "seconds": f"{seconds:.1f}"}.items():
        table.add_row(name, value)
    compared = "tokens" if "task" not in made.summary() else "results"
    table.add_row(compared, "equal to the model's own" if made.compared else "not compared (--verify)")
    console = Console(emoji=False)
    console.print(table)
    console.print(f"\n{made.usage}", highlight=False, markup=False, soft_wrap=True)
