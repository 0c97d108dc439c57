"""A decoder of 100 M parameters on one thread: onnxruntime-genai's own builder and transformers' generate beside ours.

    python -m benchmarks.language_models            # prints the tables
    python -m benchmarks.language_models --write    # into benchmarks/language_models.md

Each figure is the best of some runs, and those of the peers are taken in turn with ours, round after round. Where
weights lie in memory changes the times of a process by a tenth: there are several, which load the files in different
orders.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

PAGE = Path(__file__).with_suffix(".md")
SIZES = {"vocab_size": 16_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
         "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 1024}  # fmt: skip
ROUNDS, STEPS, PASTS = 3, 24, (64, 512)
PROCESSES, TURNS = 16, 3  # with all files, and of all files in one


def checkpoint(folder: Path) -> Any:
    import transformers

    from tests.language_models.checkpoints import tokenizer

    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **ends)).eval()
    model.save_pretrained(folder)
    tokenizer(folder)
    return model


def one_thread(folder: Path) -> None:
    """onnxruntime-genai on one thread, and texts that do not end."""
    place = folder / "genai_config.json"
    said = json.loads(place.read_text())
    said["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
    place.write_text(json.dumps(said))


class Genai:
    """Milliseconds in onnxruntime-genai's own loop."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai

        self.library, self.model = onnxruntime_genai, onnxruntime_genai.Model(str(folder))

    def __call__(self, past: int) -> tuple[float, float, None]:
        """Of the prompt, and of a token behind it."""
        params = self.library.GeneratorParams(self.model)
        params.set_search_options(max_length=past + STEPS + 1, min_length=past + STEPS + 1, do_sample=False)
        generator = self.library.Generator(self.model, params)
        tokens = torch.randint(4, 16_000, (past,), generator=torch.Generator().manual_seed(0))
        start = time.perf_counter()
        generator.append_tokens(tokens.numpy().astype("int32"))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(STEPS - 1):
            generator.generate_next_token()
        return 1000 * (first - start), 1000 * (time.perf_counter() - first) / (STEPS - 1), None


def genai_table(source: Path, work: Path) -> list[str]:
    """Ours and the builder's, float and int4."""
    import language_models

    made: dict[str, tuple[Path, float]] = {}
    for weights in ("f32", "int4"):
        start = time.perf_counter()
        language_models.export(source, path=work / f"plain-{weights}", weights=weights)
        made[f"ours, plain, {weights}"] = work / f"plain-{weights}", time.perf_counter() - start
        start = time.perf_counter()
        language_models.export(source, path=work / f"ours-{weights}", weights=weights, contrib=True)
        made[f"ours, contrib, {weights}"] = work / f"ours-{weights}", time.perf_counter() - start
        start = time.perf_counter()
        precision = {"f32": "fp32", "int4": "int4"}[weights]
        out = work / f"builder-{weights}"
        said = ["-m", "benchmarks.language_models", "--builder", str(source), str(out), precision]
        done = subprocess.run([sys.executable, *said], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        made[f"builder, {weights}"] = out, time.perf_counter() - start
    for folder, _ in made.values():
        one_thread(folder)
    taken = measured("benchmarks.language_models", {name: str(folder) for name, (folder, _) in made.items()})["taken"]
    lines = ["| | export, s | MB | ms a token, past 64 | past 512 | prompt of 512, ms |", "|---|---|---|---|---|---|"]
    for name, (folder, seconds) in made.items():
        size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
        peer = taken[f"builder, {name.rpartition(', ')[2]}"]
        cells = [
            cell(mine, min(theirs), statistics.median(theirs))
            for mine, theirs in zip(zip(*taken[name]), zip(*peer), strict=True)
        ]
        lines.append(f"| {name} | {seconds:.1f} | {size:.0f} | {' | '.join(cells)} |")
    return lines


def measured(module: str, files: dict[str, str]) -> Any:
    """What `turns` of a module prints of the files, joined over processes that load them in different orders."""
    names, found = list(files), {}
    for number in range(PROCESSES):
        first = number % len(names)
        order = [*names[first:], *names[:first]][:: -1 if number % 2 else 1]
        said = [sys.executable, "-m", module, "--turns", json.dumps({name: files[name] for name in order})]
        answer = json.loads(subprocess.run(said, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
        earlier = found.get("taken", {name: [] for name in names})
        found = answer | {"taken": {name: earlier[name] + answer["taken"][name] for name in names}}
    return found


def turns(generate: dict[str, Callable[[int], tuple[float, float, Any]]]) -> None:
    """Print {"taken": {name: [[ms a token past 64, past 512, of a prompt of 512], ...]}, "texts": {name: tokens}}."""
    taken: dict[str, list[list[float]]] = {name: [] for name in generate}
    texts: dict[str, Any] = {}
    for turn in range(TURNS):
        for name in list(generate)[:: -1 if turn % 2 else 1]:
            (_, short, _), (prompt, long, texts[name]) = (generate[name](past) for past in PASTS)
            taken[name].append([short, long, prompt])
    print(json.dumps({"taken": taken, "texts": texts}))


def cell(ours: Sequence[float], best: float, middle: float) -> str:
    """The best and the median of some turns, and both over those of the peer."""
    mine = min(ours), statistics.median(ours)
    return f"{mine[0]:.1f}, {mine[1]:.1f} ({mine[0] / best:.2f}, {mine[1] / middle:.2f})"


def machine() -> str:
    """The processor, its number, and the versions."""
    import onnxruntime
    import onnxruntime_genai

    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    name = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.processor())
    versions = f"onnxruntime {onnxruntime.__version__}, onnxruntime-genai {onnxruntime_genai.__version__}"
    return f"{name}, {os.cpu_count()} cores; {versions}, torch {torch.__version__}"


def eager_table(model: Any, source: Path, work: Path) -> list[str]:
    """`generate` of the compiled programs and of transformers with a static cache."""
    import language_models

    program = language_models.export(source, path=work, target="eager").load()
    options = {"do_sample": False, "min_new_tokens": STEPS, "max_new_tokens": STEPS}

    def theirs(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model.generate(tokens, cache_implementation="static", disable_compile=True, **options)
        return found

    def ours(tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = program.generate(tokens, max_new_tokens=STEPS)
        return found

    lines = ["| threads | prompt | transformers, s | ours, s | times | tokens |", "|---|---|---|---|---|---|"]
    for past in PASTS:
        tokens = torch.randint(4, 16_000, (1, past), generator=torch.Generator().manual_seed(0))
        same = "equal" if torch.equal(ours(tokens), theirs(tokens)) else "differ"
        seconds = [float("inf")] * 2
        for _ in range(ROUNDS):
            seconds = [min(s, _timed(run, tokens)) for s, run in zip(seconds, (theirs, ours), strict=True)]
        times = f"{seconds[0]:.2f} | {seconds[1]:.2f} | {seconds[0] / seconds[1]:.2f}"
        lines.append(f"| {torch.get_num_threads()} | {past} | {times} | {same} |")
    return lines


def eager_tables(model: Any, source: Path, work: Path) -> list[str]:
    """On one thread, and on those that torch takes by itself."""
    usual = torch.get_num_threads()
    lines: list[str] = []
    for threads in (1, usual):
        torch.set_num_threads(threads)
        lines += eager_table(model, source, work / f"eager{threads}")[2 if lines else 0 :]
    return lines


def _timed(run: Callable[[torch.Tensor], Any], tokens: torch.Tensor) -> float:
    start = time.perf_counter()
    run(tokens)
    return time.perf_counter() - start


def builder(source: str, out: str, precision: str) -> None:
    """onnxruntime-genai's model builder."""
    import runpy

    sys.argv = ["builder", "-i", source, "-o", out, "-p", precision, "-e", "cpu", "-c", f"{out}.cache"]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--builder"]:
        return builder(*arguments[1:])
    if arguments[:1] == ["--turns"]:
        return turns({name: Genai(Path(folder)) for name, folder in json.loads(arguments[1]).items()})
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(Path(folder, "in"))
        parts = [
            "# Language models: times",
            "Written by `python -m benchmarks.language_models --write`: a Llama of 100 M parameters (12 layers of 768, "
            f"12 heads, 4 for keys), {STEPS} tokens, all in turns: {machine()}.",
            "## Beside onnxruntime-genai's builder, in onnxruntime-genai",
            f"One thread. The best and the median of {TURNS * PROCESSES} turns in {PROCESSES} processes; in brackets "
            "both over those of the builder. `contrib` is `contrib=True`.",
            "\n".join(genai_table(Path(folder, "in"), Path(folder))),
            "## `generate` on the eager target beside transformers' with a static cache",
            f"The best of {ROUNDS} rounds.",
            "\n".join(eager_tables(model, Path(folder, "in"), Path(folder))),
        ]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if "--write" in arguments:
        PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
