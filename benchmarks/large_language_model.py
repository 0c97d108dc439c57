"""`language_models.export` of checkpoints of 2 to 8 GB in 5 shards to every target: peak anonymous memory, seconds.

The checkpoints are Llamas in bfloat16 that this script writes, with numbers in all of them. Each export runs in a
process of its own. Mapped files are no anonymous memory: their pages go when memory is short.
-- --write puts it in the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.large_checkpoint import Watch
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

PAGE = Path(__file__).with_name("large_language_model.md")
KINDS = ("onnx bf16", "onnx int4", "onnx int8", "nnef f16", "nnef int4", "eager bf16", "eager int8", "eager int4")
SHARDS = 5
SEVEN = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32,
         "vocab_size": 32000}  # fmt: skip
SEVENTY = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
           "vocab_size": 128256}  # fmt: skip
SIZES = {"large": (16, SEVEN), "small": (4, SEVEN), "wide": (2, SEVENTY)}  # layers of a 7 B and of a 70 B Llama


def config(size: str) -> Any:
    """A Llama of few layers as wide as those of 7 B or 70 B."""
    from transformers import LlamaConfig

    layers, width = SIZES[size]
    return LlamaConfig(**width, num_hidden_layers=layers, dtype="bfloat16", architectures=["LlamaForCausalLM"])


def write_checkpoint(folder: Path, made: Any) -> tuple[int, int]:
    """Shards and their index; the bytes of all and of the largest."""
    import transformers

    import ir

    with ir.without_weights():
        model = transformers.AutoModelForCausalLM.from_config(made)
    made.save_pretrained(folder)
    names = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    size = -(-len(names) // SHARDS)
    drawn = np.random.default_rng(0).normal(0, 0.02, 1 << 23).astype(np.float32)
    numbers = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # bfloat16
    sizes, index = [], {}
    for k in range(SHARDS):
        file, header, end = f"model-{k + 1:05}-of-{SHARDS:05}.safetensors", {}, 0
        for name, shape in names[k * size : (k + 1) * size]:
            length = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + length]}
            index[name] = file
            end += length
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for place, entry in enumerate(header.values()):
                left = entry["data_offsets"][1] - entry["data_offsets"][0]
                at = 2 * (7919 * (place + 1) * (k + 1) % (1 << 20))  # so that no two tensors are equal
                while left:
                    piece = numbers[at : at + left]
                    stream.write(piece)
                    left, at = left - len(piece), 0
        sizes.append((folder / file).stat().st_size)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return sum(sizes), max(sizes)


def export(folder: Path, kind: str) -> dict[str, float]:
    """One export; seconds, the size, and the most of this process's anonymous memory."""
    import torch
    import transformers

    import ir
    import language_models

    target, weights = kind.split()
    ir.capture(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))  # what is imported at first use
    transformers.LlamaForCausalLM  # noqa: B018
    watch, start = Watch(), time.perf_counter()
    made = language_models.export(folder, path=folder / "out", target=target, weights=weights, tokenizer=False)
    seconds = time.perf_counter() - start
    size = sum((made.path / name).stat().st_size for name in made.manifest.files)
    return {"seconds": seconds, "size": size, "peak": watch.stop(), "before": watch.before}


def seventy(page: str) -> list[str]:
    """The lines of the page's second table, of 80 layers of 70 B, out of the rows of its first.

    What is held above the libraries grows with the layers, as from 4 to 16. What 2 layers of that width hold beyond
    what is expected is added.
    """
    above: dict[tuple[str, str], float] = {}
    layers = {f"{count}, {width['hidden_size']}": size for size, (count, width) in SIZES.items()}
    libraries = 0.0
    for line in page.splitlines():
        cells = [c.strip() for c in line.strip("| ").split("|")]
        size = layers.get(", ".join(cells[0].split(", ")[:2]))
        if size is not None and cells[1] in KINDS:
            above[size, cells[1]] = float(cells[2]) - float(cells[3])
            libraries = max(libraries, float(cells[3]))
    lines = []
    for kind in KINDS:
        small, large, wide = (above.get((size, kind)) for size in ("small", "large", "wide"))
        if small is None or large is None:
            continue
        layer = (large - small) / 12
        expected = small - 2 * layer
        most = large + 64 * layer + max(0.0, (expected if wide is None else wide) - expected)
        said = "not measured" if wide is None else f"{wide:.0f}"
        lines.append(f"| {kind} | {small:.0f} | {large:.0f} | {layer:.1f} | {expected:.0f} | {said} | {most:.0f} | "
                     f"{most + libraries:.0f} |")  # fmt: skip
    return lines


def main() -> None:
    """Measure and print a table, or write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--sizes", nargs="*", default=[*SIZES])
    parser.add_argument("--folder", default=None)
    parser.add_argument("--one", nargs=2, help="a folder and a kind, in a process of its own")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(export(Path(options.one[0]), options.one[1])))
        return
    lines = ["| layers, width, GB, largest shard | to | peak anonymous memory, MB | of it libraries | of the largest "
             "shard | written, GB | s |", "|---|---|" + "---:|" * 5]  # fmt: skip
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            total, largest = write_checkpoint(folder, config(size))
            what = f"{SIZES[size][0]}, {SIZES[size][1]['hidden_size']}, {total / 1e9:.1f}, {largest / 1e9:.2f}"
            for kind in options.kinds:
                command = [sys.executable, "-m", "benchmarks.large_language_model", "--one", name, kind]
                found = json.loads(subprocess.check_output(command).splitlines()[-1])
                peak, before = (found[k] / 1e6 for k in ("peak", "before"))
                share = found["peak"] / largest
                lines.append(f"| {what} | {kind} | {peak:,.0f} | {before:,.0f} | {share:.2f} | "
                             f"{found['size'] / 1e9:.2f} | {found['seconds']:.0f} |")  # fmt: skip
                print(lines[-1], flush=True)
                shutil.rmtree(folder / "out")
    print("70 B", *seventy("\n".join(lines)), sep="\n")
    if options.write:
        pages.put(PAGE, f"Load of the machine at the end {os.getloadavg()[0]:.1f}.\n\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
