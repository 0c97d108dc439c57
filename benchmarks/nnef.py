"""Export to NNEF and the exports in tract beside torch-to-nnef: `python -m benchmarks.nnef --peer PYTHON [names...]`.

PYTHON is that of an environment with torch_to_nnef, nnef-tools and the same torch, tract, timm and transformers
(`nox -s benchmarks -- nnef` makes one). Both write a .tar without compression, for the same tract, with the same
dynamic dimensions; where torch-to-nnef does not manage those, both write fixed sizes. Exports run in turns; seconds are
those of the processor, one thread, the least of a few. "From the program" starts from an
ExportedProgram, which torch-to-nnef cannot. For the latency one process holds both archives and runs them in turns, at
the traced sizes; milliseconds are the least. An error is the largest difference from torch over torch's largest value,
over the traced sizes and, where sizes are dynamic, two others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import ir
from ir.importer.fake_rules import dynamic
from tests import zoo

# those of the issue on NNEF, by their names in the zoo
MODELS = (
    "resnet50", "mobilenet_v3_small", "efficientnet_b0", "vit_b_16", "swin_t", "convnext_tiny", "densenet121",
    "squeezenet1_1", "shufflenet_v2_x1_0", "deeplabv3_mobilenet_v3_large", "bert", "distilbert", "gpt2", "llama",
    "t5_encoder", "whisper_encoder", "clip_vision", "wav2vec2", "mobilevit_s", "maxvit_nano_rw_256", "lstm",
)  # fmt: skip
PAGE = Path(__file__).parent / "nnef.md"
ROOT = Path(__file__).parents[1]
ROWS = ROOT / "build" / "nnef_benchmark.json"  # what was measured so far: names given replace theirs in the page
SOUND = 1e-3  # an error beyond this is another function, not rounding
TURNS_SECONDS = 600.0


@dataclass
class Row:
    """One model: seconds, milliseconds, errors and bytes as [ours, theirs], theirs left out where it fails."""

    name: str
    sizes: str = "dynamic"
    module: list[float] = field(default_factory=list)
    program: float = 0.0
    ms: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Peer:
    """torch-to-nnef in its own interpreter."""

    def __init__(self, python: str) -> None:
        path = os.pathsep.join([*map(str, sorted(ROOT.glob("packages/*/src"))), str(ROOT)])
        # transformers compiles nothing there, and one thread makes processor time comparable
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment.pop("VIRTUAL_ENV", None)
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.nnef_peer"], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.versions: dict[str, str] = self._answer()

    def export(self, name: str, small: bool, dynamic: bool, path: Path) -> tuple[float, Path]:
        """Seconds of the processor and the archive.

        Raises:
            RuntimeError: with the first line of what it says.
        """
        assert self.process.stdin is not None
        request = {"name": name, "small": small, "dynamic": dynamic, "path": str(path)}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"], Path(answer["path"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"torch-to-nnef's process ended with {self.process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# -- measuring ---------------------------------------------------------------------------------------------------------


def seconds_of(call: Callable[[], Any]) -> float:
    """Processor time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def save_case(folder: Path, model: zoo.Model, module: torch.nn.Module, sizes: dict[str, int]) -> Path:
    """Inputs by name and torch's results, as `nnef_turns` reads them."""
    folder.mkdir()
    args, kwargs = model.inputs(sizes)
    inputs = dict(zip(model.dynamic_shapes, (*args, *kwargs.values()), strict=True))
    with torch.inference_mode():
        results = [t for t in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    np.savez(folder / "inputs.npz", **{n: t.numpy() for n, t in inputs.items()})  # type: ignore[arg-type]
    np.savez(folder / "expected.npz", *(t.numpy() for t in results))
    return folder


def in_turns(folder: Path, archives: list[Path], cases: list[Path], seconds: float) -> dict[str, Any]:
    """Errors and milliseconds of archives in one process of tract.

    Raises:
        RuntimeError: with tract's words.
    """
    request = folder / "request.json"
    request.write_text(json.dumps({"archives": [*map(str, archives)], "cases": [*map(str, cases)], "seconds": seconds}))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.nnef_turns", str(request)],
            cwd=ROOT, capture_output=True, text=True, timeout=TURNS_SECONDS,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"tract is not done with it after {TURNS_SECONDS:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"tract: {_cause(done.stderr)}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _cause(text: str) -> str:
    """The line of a traceback or of a panic that says what is wrong, with tract's innermost cause."""
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\S*?/", "", text)  # not where the files lay
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((i for i, line in enumerate(lines) if "panicked" in line or line.split(":")[0].endswith("Error")), -1)
    if "panicked" in lines[said]:
        return f"abort: {' '.join(lines[said : said + 2])}"
    return f"{lines[said]} ... {lines[-1]}" if lines[-1] != lines[said] else lines[said]


def ours(model: zoo.Model, module: torch.nn.Module, sizes: str, path: Path) -> tuple[float, float]:
    """Seconds from the module to the file, and from an ExportedProgram."""
    args, kwargs = model.inputs(model.sizes)
    shapes = model.dynamic_shapes if sizes == "dynamic" else None
    whole = seconds_of(lambda: ir.export(module, args, kwargs, target="nnef", path=path, dynamic_shapes=shapes))
    with dynamic():
        exported = model.export_shapes() if shapes else None
        program = torch.export.export(module, args, kwargs, dynamic_shapes=exported)
    return whole, seconds_of(lambda: ir.export(program, target="nnef", path=path))


def theirs(peer: Peer, name: str, small: bool, sizes: str, folder: Path, cases: list[Path]) -> tuple[float, Path]:
    """Seconds and an archive that tract runs and that computes what torch computes.

    Raises:
        RuntimeError: why not.
    """
    took, archive = peer.export(name, small, sizes == "dynamic", folder / "theirs.nnef")
    (wrong,) = in_turns(folder, [archive], cases, 0.0)["errors"]
    if not wrong < SOUND:
        raise RuntimeError(f"wrong numbers: {wrong:.1g} of the largest value")
    return took, archive


def measure(name: str, peer: Peer, small: bool, rounds: int, seconds: float, folder: Path) -> Row:
    """One model, all its figures."""
    row, model = Row(name), zoo.get(name, small=small)
    module = model.build()
    everywhere = [save_case(folder / f"case{i}", model, module, s)
                  for i, s in enumerate((model.sizes, *model.other_sizes))]  # fmt: skip
    found, cases = None, everywhere
    for row.sizes, cases in (("dynamic", everywhere), ("fixed", everywhere[:1])):
        try:
            found = theirs(peer, name, small, row.sizes, folder, cases)
            break
        except RuntimeError as error:
            row.failures.append(f"{row.sizes}: {error}")
    if found is None:
        row.sizes, cases = "dynamic", everywhere
    path = folder / "ours.nnef.tar"
    own, peers = [], [found[0]] if found else []
    for turn in range(rounds + 1):
        own.append(ours(model, module, row.sizes, path))
        if found and turn < rounds - 1:
            peers.append(peer.export(name, small, row.sizes == "dynamic", folder / "theirs.nnef")[0])
    row.module = [min(m for m, _ in own), *([min(peers)] if peers else [])]
    row.program = min(p for _, p in own)
    archives = [path, *([found[1]] if found else [])]
    row.bytes = [a.stat().st_size for a in archives]
    result = in_turns(folder, archives, cases, seconds)
    row.errors, row.ms = result["errors"], result["ms"]
    return row


def rows(
    names: list[str], python: str, small: bool, rounds: int, seconds: float, keep: Path | None = None
) -> Iterator[Row]:
    """Measure models one by one, on one thread; the archives stay under `keep`."""
    torch.set_num_threads(1)
    peer = Peer(python)
    try:
        for name in names:
            folder = Path(tempfile.mkdtemp(prefix="nnef-")) if keep is None else keep / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                yield measure(name, peer, small, rounds, seconds, folder)
            finally:
                if keep is None:
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        peer.close()


# -- tables ------------------------------------------------------------------------------------------------------------


def line(r: Row) -> str:
    """A row of the table."""
    both = len(r.module) == 2
    cells = [
        r.name,
        r.sizes,
        f"{r.module[0]:.2f}",
        f"{r.program:.3f}",
        f"{r.module[1]:.2f}" if both else "fails",
        f"**{r.module[1] / r.module[0]:.1f}**" if both else "",
        f"**{r.module[1] / r.program:.0f}**" if both else "",
        f"{r.ms[0]:.2f}",
        f"{r.ms[1]:.2f}" if both else "",
        f"**{r.ms[0] / r.ms[1]:.3f}**" if both else "",
        " / ".join(f"{e:.0e}" for e in r.errors),
        " / ".join(f"{b / 1e6:.1f}" for b in r.bytes),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| model | sizes | ours s | from the program s | theirs s | ratio | ratio from the program | ours ms | theirs ms "
    "| ours / theirs | error ours / theirs | MB |\n" + "|---" * 12 + "|"
)


def table(measured: list[Row]) -> str:
    """The rows, their means, and what torch-to-nnef says where it fails."""
    both = [r for r in measured if len(r.module) == 2]
    lines = [HEAD, *map(line, measured)]
    if both:
        means = [math.exp(statistics.fmean(map(math.log, ratios))) for ratios in (
            [r.module[1] / r.module[0] for r in both], [r.module[1] / r.program for r in both],
            [r.ms[0] / r.ms[1] for r in both])]  # fmt: skip
        lines.append(f"| geometric mean of {len(both)} | | | | | **{means[0]:.1f}** | **{means[1]:.0f}** | | "
                     f"| **{means[2]:.3f}** | | |")  # fmt: skip
    said = [f"- {r.name}, {f}" for r in measured for f in r.failures]
    return "\n".join([*lines, "", "Where torch-to-nnef fails, and what it or tract says:", "", *said])


def page(measured: list[Row], python: str, rounds: int) -> str:
    versions = subprocess.run(
        [python, "-c", "from importlib.metadata import version as v; print(v('torch_to_nnef'), v('tract'))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return (
        f"# Export to NNEF\n\n{(__doc__ or '').partition(chr(10) * 2)[2]}\n"
        f"Measured with torch {torch.__version__}, tract {metadata.version('tract')},\n"
        f"torch_to_nnef {versions[0]} (for tract {versions[1]}), {rounds} rounds, models of the zoo at full size,\n"
        f"on {platform.machine()} with {os.cpu_count()} cores that were shared with other work.\n\n{table(measured)}\n"
    )


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of the zoo; by default those of the issue")
    parser.add_argument("--peer", required=True, metavar="PYTHON", help="the python of torch-to-nnef's environment")
    parser.add_argument("--small", action="store_true", help="the zoo's small variants")
    parser.add_argument("--rounds", type=int, default=2, help="exports of each")
    parser.add_argument("--seconds", type=float, default=8.0, help="of latency a model")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the archives there")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    options = parser.parse_args()
    print(HEAD, flush=True)
    chosen = options.names or list(MODELS)
    measured = {}
    for row in rows(chosen, options.peer, options.small, options.rounds, options.seconds, options.keep):
        measured[row.name] = row
        print(line(row), *row.failures, sep="\n  ", flush=True)
        if options.write:  # a long run that is broken off leaves what it has
            PAGE.write_text(page(kept(row, whole=not options.names), options.peer, options.rounds))
    print(table(list(measured.values())))


def kept(new: Row, whole: bool) -> list[Row]:
    """The rows of the page in the table's order, with this one in the place of its older self."""
    old = json.loads(ROWS.read_text()) if ROWS.exists() and not (whole and new.name == MODELS[0]) else {}
    old[new.name] = asdict(new)
    ROWS.parent.mkdir(exist_ok=True)
    ROWS.write_text(json.dumps(old))
    return [Row(**old[name]) for name in (*MODELS, *(n for n in old if n not in MODELS)) if name in old]


if __name__ == "__main__":
    main()
