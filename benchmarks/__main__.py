"""All benchmarks, into benchmarks/README.md: `python -m benchmarks`."""

from __future__ import annotations

import platform
import warnings
from pathlib import Path

import torch

from benchmarks import eager, export

PAGE = """# Benchmarks

Ratios of ours to the peer's in one process and one run; the seconds mean little on another machine. Measured with
torch {torch} on {machine}, {threads} threads. Run them again with `nox -s benchmarks` (all) or
`python -m benchmarks.export`, `python -m benchmarks.eager`. Export to NNEF beside torch-to-nnef:
[nnef.md](nnef.md), `nox -s benchmarks -- nnef`.

## Export to ONNX

From the same ExportedProgram, warm: ours / torch.onnx.export(program, dynamo=True), both in memory and then both with
the file; seconds are processor time. All models: docs/models.md.

{export}

## The eager program

Against `ExportedProgram.module(check_guards=False)` under torch.inference_mode, one CPU thread; the median of the
ratios of neighbouring runs. With its guards, as `ExportedProgram.module()` comes by default, the module is slower
still.

{eager}
"""


def main() -> None:
    warnings.simplefilter("ignore")
    text = PAGE.format(
        torch=torch.__version__,
        machine=platform.machine(),
        threads=torch.get_num_threads(),
        export=export.table(),
        eager=eager.table(),
    )
    (Path(__file__).parent / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
