"""Export beside torch.onnx, into benchmarks/README.md: `python -m benchmarks`; other pages have their own commands."""

from __future__ import annotations

import platform
import warnings
from pathlib import Path

import torch

from benchmarks import export

PAGE = """# Benchmarks

Ratios of ours to the peer's in one process and one run; the seconds mean little on another machine. Measured with
torch {torch} on {machine}, {threads} threads. `nox -s benchmarks` runs all of them:

- export to ONNX beside torch.onnx, below: `python -m benchmarks`; all models: docs/models.md, `nox -s models`
- the eager program beside torch and onnxruntime: [eager.md](eager.md), `python -m benchmarks.eager --write`;
  on a GPU: [eager_cuda.md](eager_cuda.md), `python -m benchmarks.eager_cuda --write`
- export to NNEF beside torch-to-nnef: [nnef.md](nnef.md), `nox -s benchmarks -- nnef`
- reading a .pt2 file beside torch.export.load: [pt2.md](pt2.md), `python -m benchmarks.pt2 --write`
- export by number of nodes, to 50,000: [scaling.md](scaling.md), `python -m benchmarks.scaling --write`
- rows a second in Ray Data, Spark and Dask: [batch_inference.md](batch_inference.md),
  `python -m benchmarks.batch_inference --write` in the environment of `nox -s batch_inference`
- memory for a checkpoint of 20 GB: [large_checkpoint.md](large_checkpoint.md),
  `python -m benchmarks.large_checkpoint --write`
- language models beside onnxruntime-genai's builder and transformers: [language_models.md](language_models.md),
  `python -m benchmarks.language_models --write`; in tract beside torch-to-nnef's export of them:
  [language_models_tract.md](language_models_tract.md), `nox -s benchmarks -- language_models_tract`;
  a checkpoint of 7 GB: [large_language_model.md](large_language_model.md); what weights in few bits cost a trained
  model: [few_bits.md](few_bits.md), `python -m benchmarks.few_bits --write`
- tensor-parallel models on several processes: [tensor_parallel.md](tensor_parallel.md),
  `python -m benchmarks.tensor_parallel --write`
- times that decided between two forms of the same thing: [choices.md](choices.md)

## Export to ONNX

From the same ExportedProgram, warm: ours / torch.onnx.export(program, dynamo=True), both in memory and then both with
the file; seconds are processor time.

{export}
"""


def main() -> None:
    warnings.simplefilter("ignore")
    text = PAGE.format(
        torch=torch.__version__,
        machine=platform.machine(),
        threads=torch.get_num_threads(),
        export=export.table(),
    )
    (Path(__file__).parent / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
