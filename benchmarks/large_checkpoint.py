"""A checkpoint larger than half of this machine's memory to every target: peak anonymous memory, seconds: -- --write.

The checkpoint is a Llama in float16, written by this script in shards whose tensors are holes in sparse files, but for
some numbers at the beginning of each. Each export runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import pages
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

PAGE = Path(__file__).with_name("large_checkpoint.md")
KINDS = ("onnx, by reference", "onnx, copied", "nnef")
SHARDS = 5


def config(layers: int) -> Any:
    """A Llama of 7 B's width."""
    from transformers import LlamaConfig

    return LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32,
                       vocab_size=32000, use_cache=False, dtype="float16")  # fmt: skip


def build(layers: int) -> Any:
    """The model without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    import ir

    with ir.without_weights():
        return AutoModelForCausalLM.from_config(config(layers), dtype=torch.float16).eval()


def write_checkpoint(folder: Path, layers: int) -> int:
    """Sparse shards and their index; the bytes that they claim."""
    names = [(n, tuple(p.shape)) for n, p in build(layers).named_parameters()]
    size = -(-len(names) // SHARDS)
    total, index = 0, {}
    for k in range(SHARDS):
        file, header, end = f"model-{k + 1:05}-of-{SHARDS:05}.safetensors", {}, 0
        for name, shape in names[k * size : (k + 1) * size]:
            length = 2
            for n in shape:
                length *= n
            header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end + length]}
            index[name] = file
            end += length
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 4096 - 8 % 4096)
        with (folder / file).open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            for place, entry in enumerate(header.values()):  # so that no two tensors are equal
                stream.seek(8 + len(text) + entry["data_offsets"][0])
                stream.write(struct.pack("<2H", 0x2E66, place + 1))
            stream.truncate(8 + len(text) + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return total


def export(folder: Path, layers: int, kind: str) -> dict[str, float]:
    """One export; seconds, and the most of this process's anonymous memory above what the libraries take."""
    import torch

    import ir

    model = build(layers)
    ir.capture(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))  # what is imported at first use
    watch = Watch()
    start = time.perf_counter()
    ir.load_weights(model, folder)
    ids = torch.ones(1, 8, dtype=torch.int64)
    shapes = {"input_ids": {0: "batch", 1: "sequence"}}
    loaded = time.perf_counter()
    graph = ir.capture(model, (ids,), dynamic_shapes=shapes)
    captured = time.perf_counter()
    if kind == "nnef":
        ir.export(graph, target="nnef", path=folder / "model.nnef.tar")
    elif kind == "onnx, copied":
        ir.export(graph, target="onnx", path=folder / "model.onnx", max_shard_size=4 << 30)
    else:
        ir.export(graph, target="onnx", path=folder / "model.onnx", external_data="reference")
    end = time.perf_counter()
    return {"load": loaded - start, "capture": captured - loaded, "write": end - captured,
            "peak": watch.stop(), "before": watch.before}  # fmt: skip


class Watch(threading.Thread):
    """The most anonymous memory (RssAnon) that this process has while it runs, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = anonymous()
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.peak = max(self.peak, anonymous())

    def stop(self) -> int:
        """The peak."""
        self.ended.set()
        self.join()
        return self.peak


def anonymous() -> int:
    """This process's anonymous memory now."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def main() -> None:
    """Measure and print a table, or write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--one", nargs=2, help="a folder and a kind, in a process of its own")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(export(Path(options.one[0]), options.layers, options.one[1])))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        total = write_checkpoint(folder, options.layers)
        columns = "| to | peak anonymous memory, MB | of it libraries and modules | load, s | capture, s | write, s |"
        said = f"{options.layers} layers, {total / 1e9:.1f} GB of weights in {SHARDS} shards"
        lines = [f"{said}, load of the machine before it {os.getloadavg()[0]:.1f}.\n", columns, "|---|" + "---:|" * 5]
        for kind in options.kinds:
            command = [sys.executable, "-m", "benchmarks.large_checkpoint", "--layers", str(options.layers)]
            found = json.loads(subprocess.check_output([*command, "--one", name, kind]).splitlines()[-1])
            times = " | ".join(f"{found[k]:.1f}" for k in ("load", "capture", "write"))
            lines.append(f"| {kind} | {found['peak'] / 1e6:,.0f} | {found['before'] / 1e6:,.0f} | {times} |")
            print(lines[-1], flush=True)
            for made in (*folder.glob("model.onnx*"), *folder.glob("model.nnef*")):
                made.unlink()
    table = "\n".join(lines)
    print(table)
    if options.write:
        pages.put(PAGE, table)


if __name__ == "__main__":
    main()
