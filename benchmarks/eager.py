"""Run time of the eager target beside torch and others: `python -m benchmarks.eager [names...] [--compile] [--write]`.

One CPU thread, inference mode. All contenders run in turns, timed by the processor's clock; a ratio is the median of
the ratios of neighbouring runs, above 1 where the eager program is faster. `ep.module()` runs without its guards on
sizes, which is the faster way. Loading is measured from a .pt2 file, against torch.export.load of the same file.

Options: --resume keeps what build/eager/ has from an earlier run with the same options; --passes measures our program
against itself with each of its passes switched off (below 1: the pass slows the subject down; those for CUDA do nothing
here, so their columns show how far off a ratio can be).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.eager_turns import COMPILED, THEIRS, WITHOUT, Row, arguments, contenders
from eager_backend.passes import PASSES

# those of the issue on NNEF, by their names in the zoo
MODELS = (
    "resnet50", "mobilenet_v3_small", "efficientnet_b0", "vit_b_16", "swin_t", "convnext_tiny", "densenet121",
    "squeezenet1_1", "shufflenet_v2_x1_0", "deeplabv3_mobilenet_v3_large", "bert", "distilbert", "gpt2", "llama",
    "t5_encoder", "whisper_encoder", "clip_vision", "wav2vec2", "mobilevit_s", "maxvit_nano_rw_256", "lstm",
)  # fmt: skip
FOR_PASSES = ("chain", "resnet50", "mobilenet_v3_small", "vit_b_16", "bert", "lstm", "swin_t")
ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).parent / "eager.md"
SECONDS = 900.0  # for one subject

# -- rows --------------------------------------------------------------------------------------------------------------


def rows(names: Sequence[str], flags: Sequence[str], *, resume: bool = False, limit: float = SECONDS) -> Iterator[Row]:
    """Each subject in a process of its own; what was measured lies in build/eager/, apart for other flags."""
    folder = ROOT / "build" / "eager" / hashlib.sha1(" ".join(sorted(flags)).encode()).hexdigest()[:8]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        file = folder / f"{name}.json"
        if not resume or not file.exists():
            file.unlink(missing_ok=True)
            why = _run([name, str(file), *flags], limit)
            # a compiler that does not come back costs its own column only
            if not file.exists() and "--compile" in flags:
                _run([name, str(file), *(f for f in flags if f != "--compile")], limit)
                if file.exists():
                    row = json.loads(file.read_text())
                    row["failures"][COMPILED] = why
                    file.write_text(json.dumps(row))
            if not file.exists():
                yield Row(name, failures={"": why})
                continue
        yield Row(**json.loads(file.read_text()))


def _run(arguments: Sequence[str], limit: float) -> str:
    """Measure one subject; returns why there is no row, if there is none."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.eager_turns", *arguments], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=limit)
        return f"died: {(said.strip().splitlines() or [str(process.returncode)])[-1][:300]}"
    except subprocess.TimeoutExpired:
        return f"not done after {limit:.0f} s"
    finally:
        if process.poll() is None:  # an interrupted run leaves nothing behind either
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that compile
            process.communicate()


# -- tables ------------------------------------------------------------------------------------------------------------


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def table(measured: Sequence[Row], beside: Sequence[str]) -> str:
    """The subjects as Markdown, and below it what failed."""
    others = (THEIRS, *beside)
    head = ["subject", "ours ms", *(f"{o} ms | ratio" for o in others)]
    head += ["load s", "torch.export.load s", *(f"{o} s to make" for o in beside), "largest difference / scale"]
    lines = [f"| {' | '.join(head)} |", "|---" * " | ".join([*head, ""]).count("|") + "|"]
    done = [r for r in measured if r.milliseconds]
    for r in done:
        cells = [r.name, f"{r.milliseconds['']:.3f}"]
        cells += [f"{r.milliseconds[o]:.3f} | **{r.ratios[o]:.2f}**" if o in r.ratios else "- | -" for o in others]
        cells += [f"{r.seconds['']:.2f}", f"{r.seconds[THEIRS]:.2f}"]
        cells += [f"{r.seconds[o]:.1f}" if o in r.seconds else "-" for o in beside]
        lines.append(f"| {' | '.join([*cells, f'{r.error:.1g}'])} |")
    means = [f"| **{geometric_mean([r.ratios[o] for r in done if o in r.ratios]):.2f}**" for o in others]
    lines.append(f"| geometric mean | | {' | '.join(means)} {'| ' * (3 + len(beside))}|")
    failed = [f"- {r.name}, {o or 'ours'}: {why}" for r in measured for o, why in r.failures.items()]
    return "\n".join([*lines, *(["", *failed] if failed else [])])


def passes_table(measured: Sequence[Row]) -> str:
    """For each subject and pass the time without the pass over the time with it; empty where nothing was measured."""
    lines = [f"| subject | ours ms | {' | '.join(PASSES)} |", "|---" * (2 + len(PASSES)) + "|"]
    for r in measured:
        found = (r.ratios.get(WITHOUT.format(p)) for p in PASSES)
        cells = [f"{ratio:.3f}" if ratio else "-" for ratio in found]
        lines.append(f"| {r.name} | {r.milliseconds.get('', math.nan):.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, parents=[arguments()], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="chain and names of the zoo; by default those of the table")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    parser.add_argument("--resume", action="store_true", help="keep what build/eager/ has")
    parser.add_argument("--limit", type=float, default=SECONDS, help="seconds for one subject")
    options = parser.parse_args()
    names = options.names or (FOR_PASSES if options.passes else ("chain", *MODELS))
    switches = ("small", "compile", "alone", "passes", "autotune")
    flags = [f"--{s}" for s in switches if getattr(options, s)] + [f"--seconds={options.seconds:g}"]
    flags += [] if options.optimize is None else [f"--optimize={options.optimize}"]
    measured = []
    for row in rows(names, flags, resume=options.resume, limit=options.limit):
        measured.append(row)
        print(row, file=sys.stderr, flush=True)  # a long run shows how far it is
    text = passes_table(measured) if options.passes else table(measured, contenders(options))
    print(text)
    if options.write and not options.passes:
        PAGE.write_text(f"# The eager program\n\n{__doc__.split(chr(10) * 2)[1]}\n\n{text}\n")


if __name__ == "__main__":
    main()
