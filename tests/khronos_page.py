"""docs/khronos.md: what standard NNEF says of the op table, and what it cannot: `python -m tests.khronos_page`.

Every case is captured with fixed sizes, since the standard has no symbols; what exports is parsed, shape-inferred,
run in nnef-tools' interpreter and compared with torch.
"""

from __future__ import annotations

import collections
import re
import sys
import warnings
from pathlib import Path

import torch

import ir
from tests.cases import FAMILIES, TRACED, Case

PAGE = Path(__file__).parents[1] / "docs" / "khronos.md"
MODELS = ("resnet50", "mobilenet_v3_small", "squeezenet1_1", "densenet121", "convnext_tiny", "efficientnet_b0",
          "vit_b_16", "clip_vision", "shufflenet_v2_x1_0", "deeplabv3_mobilenet_v3_large", "mobilevit_s",
          "maxvit_nano_rw_256", "whisper_encoder")  # fmt: skip
FULL = MODELS[:5]
NEEDS = re.compile(r"it needs (\w+): standard NNEF lacks it; tract's extension (\w+) has it")
TYPED = re.compile(r"standard NNEF has no (\w+) of (\w+)")
NO_TENSOR = re.compile(r"tract has no (\w+) tensors")


def outcome(case: Case) -> tuple[str, str]:
    """("pass" | "refused" | "wrong" | "fail", message) of a case with fixed sizes."""
    torch.manual_seed(0)
    try:
        program = ir.export(ir.capture(case.module(), case.args(TRACED)), target="khronos")
        program.verify(case.args(TRACED))
    except (ir.UnsupportedOpsError, ir.RefusedError, ir.CaptureError) as error:
        return "refused", str(error)
    except ir.MismatchError as error:
        return "wrong", str(error)
    except Exception as error:
        return "fail", f"{type(error).__name__}: {error}"
    return "pass", ""


def lacks(message: str) -> tuple[str, str]:
    """What a refusal says the standard lacks, and the extension that has it."""
    found = NEEDS.search(message)
    if found:
        return f"`{found[1]}`", f"`{found[2]}`"
    found = TYPED.search(message)
    if found:
        kind = {"i": "integers", "u": "integers", "b": "truth values"}.get(found[2][:1], "floats of 16 and 64 bits")
        return f"arithmetic and comparison of {kind} (`{found[1]}`, ...)", "`tract_core`"
    found = NO_TENSOR.search(message)
    if found:
        return f"tensors of {found[1]}", "none"
    if "depends on data" in message:
        return "sizes that depend on data", "`tract_onnx`" if "tract_onnx" in message else "none"
    return "no form in any extension that is written here", "none"


def page() -> tuple[str, int]:
    """The page's text, and how many cases were wrong or failed."""
    counts: dict[str, collections.Counter[str]] = {}
    missing: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    bad = []
    for family, cases in FAMILIES.items():
        counts[family] = collections.Counter()
        for case in cases:
            status, message = outcome(case)
            counts[family][status] += 1
            if status == "refused":
                what, extension = lacks(message)
                what = re.sub(r" \(`\w+`, \.\.\.\)", "", what)
                missing[what, extension].append(case.name)
            elif status != "pass":
                bad.append(f"{status} {case.name}: {message[:300]}")
    print("\n".join(bad), file=sys.stderr)
    lines = [
        "# Standard NNEF",
        "",
        "The target `khronos` writes NNEF 1.0.5 with standard operations only. Its files are parsed and shape-inferred",
        "by Khronos' own parser, and run in nnef-tools' interpreter. Sizes are fixed: the standard has no symbols, so",
        "that a dynamic dimension is refused (tract's extension `tract_symbol` has them).",
        "Written by `python -m tests.khronos_page`.",
        "",
        "## The op table with fixed sizes",
        "",
        "| family | cases | equal to torch | refused |",
        "|---|---|---|---|",
    ]
    for family, found in counts.items():
        lines.append(f"| {family} | {sum(found.values())} | {found['pass']} | {found['refused']} |")
    total = sum(counts.values(), collections.Counter())
    lines.append(f"| **all** | **{sum(total.values())}** | **{total['pass']}** | **{total['refused']}** |")
    lines += [
        "",
        "The error function is not in the standard either; `erf` and the exact `gelu` are written as a rational",
        "function of degrees 5 and 5 (`nnef_backend/handlers/erf.py`), within 4.5e-7 of erf in 32-bit floats,",
        "relatively. `expand` is `tile`, a custom op's body stands in place, known places of a weight are a weight.",
        "Complex numbers are two real tensors, and one with a last axis of 2 at inputs and outputs.",
        "",
        "## What the standard cannot say",
        "",
        "Each refused case, by what it lacks first, and the extension that has it (the target `nnef` writes these).",
        "",
        "| lacking | extension | cases | such as |",
        "|---|---|---|---|",
    ]
    for (what, extension), names in sorted(missing.items(), key=lambda m: (-len(m[1]), m[0])):
        lines.append(f"| {what} | {extension} | {len(names)} | {', '.join(names[:4])} |")
    return "\n".join([*lines, "", *models(), ""]), len(bad)


def models() -> list[str]:
    """The section on models: each exported, parsed, shape-inferred, run and compared."""
    from tests.zoo import get

    lines = [
        "## Models",
        "",
        "Random weights; small variants have the same operators in fewer layers.",
        "",
        "| model | size | ops | largest error / scale |",
        "|---|---|---|---|",
    ]
    for name in MODELS:
        model = get(name, small=name not in FULL)
        args, kwargs = model.inputs(model.sizes)
        graph = ir.capture(model.build(), args, kwargs)
        try:
            report = ir.export(graph, target="khronos").verify(args, kwargs)
            found = f"{max(r.error / max(r.scale, 1e-3) for r in report.rows):.1e}"
        except ir.ExportError as error:
            found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        size = "full" if name in FULL else "small"
        lines.append(f"| {name} | {size} | {len(graph.nodes)} | {found} |")
    return lines


def main() -> int:
    warnings.simplefilter("ignore")
    text, bad = page()
    PAGE.write_text(text)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
