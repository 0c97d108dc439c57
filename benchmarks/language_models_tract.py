"""A decoder of 100 M parameters in tract, beside the file of torch-to-nnef's LLM export.

    python -m benchmarks.language_models_tract --peer PYTHON --write

PYTHON is that of an environment with torch_to_nnef_llm 0.24.12 and transformers 5.14 (5.23 fixes a size, 5.24 fails;
`nox -s benchmarks -- language_models_tract` makes one). Both files meet the contract of tract's causal-LM example. A
process loads all of them, with the caches folded into tract's state as that example does, on one thread, and generates
from them in turns; where weights lie in memory changes the times of a process by a tenth, so there are several, which
load them in different orders.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.language_models import PROCESSES, SIZES, STEPS, TURNS, cell, checkpoint, machine, measured, turns

PAGE = Path(__file__).with_suffix(".md")
# of the peer, by its own options; weights in blocks of 4 bits are Q4_0 in both
FORMS = {"f32": {}, "f32, reify_sdpa_operator": {"reify_sdpa_operator": True},
         "q4_0": {"compression_method": "min_max_q4_0"}}  # fmt: skip
OURS = """
import sys
from tests.zoo import torchvision_shim
import language_models
source, out, weights = sys.argv[1:]
language_models.export(source, path=out, target="nnef", weights=weights)
"""
# a script for each form: it writes its command line into the document, where tract reads no quotation marks
PEER = """
import sys
from pathlib import Path
from torch_to_nnef_llm.exporter import dump_llm
source, out, binary = sys.argv[1:]
dump_llm(local_dir=Path(source), export_dirpath=out, tract_specific_path=Path(binary), no_verify=True, **{options})
"""
BINARY = "#!/bin/sh\necho tract {}\n"  # all that it asks of tract's command line where it does not check


def load(path: str) -> Any:
    """A file in tract, its caches folded.

    Raises:
        RuntimeError: the caches of the file are no state of tract's.
    """
    import tract

    model = tract.nnef().with_tract_extra().with_tract_transformers().load(path)
    model.transform("transformers_detect_all")
    if model.input_count() != 1:
        raise RuntimeError(f"{path}: {model.input_count()} inputs are left after the caches were folded")
    return model.into_runnable()


def generate(runnable: Any, past: int) -> tuple[float, float, list[int]]:
    """Milliseconds of the prompt and of a token behind it, and the tokens."""
    import numpy as np

    state = runnable.spawn_state()
    new = np.random.default_rng(0).integers(4, SIZES["vocab_size"], (1, past))
    tokens, marks = [], [time.perf_counter()]
    for _ in range(STEPS):
        logits = state.run([new])[0].to_numpy()
        marks.append(time.perf_counter())
        tokens.append(int(logits[0, -1].argmax()))
        new = np.array([tokens[-1:]])
    return 1000 * (marks[1] - marks[0]), 1000 * (marks[-1] - marks[1]) / (STEPS - 1), tokens


def export(source: Path, work: Path, peer: str) -> dict[str, tuple[Path, float]]:
    """The files by name, and the seconds that each took, with the interpreter's start."""
    made = {}
    binary = work / "tract"
    binary.write_text(BINARY.format(metadata.version("tract")))
    binary.chmod(0o755)
    for weights in ("f32", "int4"):
        out = work / weights
        said = [sys.executable, "-c", OURS, source, out, weights]
        made[f"ours, {weights}"] = out / "model.nnef.tgz", _seconds(said)
    for number, (name, options) in enumerate(FORMS.items()):
        out = work / f"peer{number}"
        script = work / f"peer{number}.py"
        script.write_text(PEER.replace("{options}", repr(options)))
        said = [peer, script, source, out, binary]
        made[f"torch-to-nnef, {name}"] = out / "model" / "model.nnef.tgz", _seconds(said)
    return made


def _seconds(said: list[Any]) -> float:
    start = time.perf_counter()
    done = subprocess.run(list(map(str, said)), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return time.perf_counter() - start


def table(made: dict[str, tuple[Path, float]]) -> list[str]:
    answer = measured("benchmarks.language_models_tract", {name: str(path) for name, (path, _) in made.items()})
    taken = answer["taken"]
    lines = ["| | export, s | MB | ms a token, past 64 | past 512 | prompt of 512, ms | tokens |", "|---|" + "---|" * 6]
    float_text = answer["texts"]["ours, f32"]
    for name, (path, seconds) in made.items():
        peers = [v for k, v in taken.items() if k.startswith("torch") and ("q4" in k) == _blocks(name)]
        cells = []
        for column, mine in enumerate(zip(*taken[name], strict=True)):
            others = [[turn[column] for turn in peer] for peer in peers]
            cells.append(cell(mine, min(map(min, others)), min(map(statistics.median, others))))
        same = "equal" if answer["texts"][name] == float_text else "other"
        tokens = "" if _blocks(name) else same
        lines.append(f"| {name} | {seconds:.1f} | {path.stat().st_size / 1e6:.0f} | {' | '.join(cells)} | {tokens} |")
    return lines


def _blocks(name: str) -> bool:
    return "int4" in name or "q4" in name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the interpreter of torch_to_nnef_llm's environment")
    parser.add_argument("--turns", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.turns:
        return turns({name: partial(generate, load(path)) for name, path in options.turns.items()})
    versions = ("torch_to_nnef_llm", "transformers", "torch")
    ask = f"from importlib import metadata; print(*(f'{{n}} {{metadata.version(n)}}' for n in {versions}), sep=', ')"
    peer = subprocess.run([options.peer, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder, "in"))
        lines = table(export(Path(folder, "in"), Path(folder), options.peer))
    text = "\n\n".join([
        "# Language models in tract: times",
        "Written by `python -m benchmarks.language_models_tract --write`: a Llama of 100 M parameters (12 layers of "
        f"768, 12 heads, 4 for keys), one thread, {STEPS} tokens. {machine()}, tract {metadata.version('tract')}; "
        f"the peer's environment: {peer}.",
        f"The best and the median of {TURNS * PROCESSES} turns in {PROCESSES} processes; in brackets both over the "
        "least of torch-to-nnef's files of the same weights. Exports are whole processes. `tokens`: beside those of "
        "our float file, behind a prompt of 512.",
        "\n".join(lines),
    ])  # fmt: skip
    print(text)
    if options.write:
        PAGE.write_text(text + "\n")


if __name__ == "__main__":
    main()
