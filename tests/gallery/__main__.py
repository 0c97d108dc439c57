"""The gallery's page out of its files, samples and limits: `python -m tests.gallery`.

The tests run every cell (tests/integration/test_gallery.py), and limits are strict, so the page says what they saw.
"""

from __future__ import annotations

import inspect
import sys

import torch

from ir.testing import _groups
from tests.gallery import FOLDER, LIMITS, SAMPLES, TARGETS, module, op, samples

PAGE = FOLDER / "README.md"
HEAD = """# Gallery

Custom ops that models carry around, each one file to copy: one definition, `@ir.custom_op` with a body in torch
functions, no handler, which serves torch itself and every target. Each is compared with a reference of its own (numpy
and loops, `tests/gallery/references.py`) and each target with the op in the target's own runtime: every sample alone,
and those of one kind by one program, exported once, whose dynamic sizes are the ones in the table. Written by
`python -m tests.gallery`.

```python
from selective_scan import selective_scan  # the file, copied; its op is torch.ops.gallery.selective_scan as well
```
"""


def page() -> str:
    """The page's text."""
    cells = [(name, target) for name in sorted(SAMPLES) for target in TARGETS]
    held = sum(cell not in LIMITS for cell in cells)
    lines = [HEAD, f"{held} of {len(cells)} cells are verified.", ""]
    lines += [f"| op | what it is | dynamic sizes | {' | '.join(TARGETS)} |", f"|---|---|---|{'---|' * len(TARGETS)}"]
    for name in sorted(SAMPLES):
        what = (module(name).__doc__ or "").splitlines()[0].rstrip(".")
        marks = ["no" if (name, target) in LIMITS else "yes" for target in TARGETS]
        lines.append(f"| [{name}]({name}.py) | {what} | {_dynamic(name)} | {' | '.join(marks)} |")
    if LIMITS:
        lines += ["", "## Limits", "", "| op | target | reason |", "|---|---|---|"]
        lines += [f"| {name} | {target} | {reason} |" for (name, target), reason in sorted(LIMITS.items())]
    return "\n".join([*lines, ""])


def _dynamic(name: str) -> str:
    """The tensors whose sizes differ between the calls that one program serves, with a star for each such size."""
    (calls, *_) = _groups([("", s) for s in samples(name)])
    shapes = [
        (argument, list(zip(*(s.args[i].shape for _, s in calls), strict=True)))
        for i, argument in enumerate(inspect.signature(op(name).__wrapped__).parameters)
        if i < len(calls[0][1].args) and isinstance(calls[0][1].args[i], torch.Tensor)
    ]
    moving = [(a, sizes) for a, sizes in shapes if any(len({*s}) > 1 for s in sizes)]
    return ", ".join(f"`{a}[{', '.join('*' if len({*s}) > 1 else str(s[0]) for s in z)}]`" for a, z in moving)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
