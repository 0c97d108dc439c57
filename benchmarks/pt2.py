"""Reading a .pt2 file beside torch.export.load: `python -m benchmarks.pt2 [names...] [--small] [--write]`.

Both read the same file in one process, in turns, the file in the system's cache; the seconds are processor time, the
least of three turns. Ours ends with the imported graph, torch's with the ExportedProgram that a graph would still have
to be imported from. A ratio below 1 says that ours is the faster.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import ir
from tests.zoo import models

MODELS = (
    "resnet50", "mobilenet_v3_small", "efficientnet_b0", "vit_b_16", "swin_t", "convnext_tiny", "densenet121",
    "squeezenet1_1", "shufflenet_v2_x1_0", "deeplabv3_mobilenet_v3_large", "bert", "distilbert", "gpt2", "llama",
    "t5_encoder", "whisper_encoder", "clip_vision", "wav2vec2", "mobilevit_s", "maxvit_nano_rw_256", "lstm",
)  # fmt: skip
PAGE = Path(__file__).parent / "pt2.md"
TURNS = 3


@dataclass(frozen=True)
class Row:
    """One file: its size, its number of torch's nodes, and the seconds of both."""

    name: str
    megabytes: float
    nodes: int
    ours: float
    theirs: float


def rows(names: Sequence[str], small: bool) -> Iterator[Row]:
    """Each model exported, saved and read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        for name in names:
            program = models.get(name, small=small).export()
            torch.export.save(program, path)
            nodes = len(program.graph.nodes)
            del program
            ours, theirs = [], []
            for _ in range(TURNS):
                theirs.append(_seconds(lambda: torch.export.load(path)))
                ours.append(_seconds(lambda: ir.capture(path)))
            yield Row(name, path.stat().st_size / 2**20, nodes, min(ours), min(theirs))


def _seconds(read: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    read()
    return time.process_time() - start


def table(measured: Sequence[Row], small: bool) -> str:
    """The page."""
    head = (__doc__ or "").partition("\n\n")[2].strip()
    kind = "small variants of the zoo's models" if small else "the models of the other pages at full size"
    lines = [
        "# Reading a .pt2 file", "", head, "",
        f"torch {torch.__version__} on {platform.machine()}, {torch.get_num_threads()} thread, {kind}.", "",
        "| model | MB | torch's nodes | ir.capture s | torch.export.load s | ratio |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in measured:
        lines.append(
            f"| {r.name} | {r.megabytes:.1f} | {r.nodes} | {r.ours:.3f} | {r.theirs:.3f} "
            f"| **{r.ours / r.theirs:.2f}** |"
        )
    mean = math.exp(sum(math.log(r.ours / r.theirs) for r in measured) / len(measured))
    return "\n".join([*lines, f"| geometric mean | | | | | **{mean:.2f}** |", ""])


def main() -> None:
    """Measure, print, and with --write keep the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    measured = []
    for row in rows(given.names, given.small):
        print(f"{row.name:30s} {row.ours:.3f} {row.theirs:.3f} {row.ours / row.theirs:.2f}", flush=True)
        measured.append(row)
    text = table(measured, given.small)
    print(text.splitlines()[-1])
    if given.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
