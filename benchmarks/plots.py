"""Drawings of the tables of the benchmarks: `python -m benchmarks.plots` makes benchmarks/images/*.svg anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
ROW, LABEL, WIDTH, TOP = 22, 210, 720, 46


@dataclass(frozen=True)
class Plot:
    """One column of one table, a bar for each row."""

    image: str
    page: str
    column: str
    nth: int  # which column of that name
    title: str
    line: float = 1.0  # where ours and the other's are the same


PLOTS = (
    Plot("eager_module", "eager.md", "ratio", 0, "The eager program: times as fast as ExportedProgram.module()"),
    Plot("eager_compile", "eager.md", "ratio", 1, "The eager program: times as fast as torch.compile"),
    Plot("eager_onnxruntime", "eager.md", "ratio", 2, "The eager program: times as fast as onnxruntime"),
    Plot("onnx_export", "README.md", "ratio", 0, "Export to ONNX: times as fast as torch.onnx.export"),
    Plot("nnef_export", "nnef.md", "ratio", 0, "Export to NNEF: times as fast as torch-to-nnef"),
    Plot(
        "nnef_latency",
        "nnef.md",
        "ours / theirs",
        0,
        "Latency in tract over that of torch-to-nnef's file (less is better)",
    ),
)


def rows(plot: Plot) -> list[tuple[str, float]]:
    """The name and the number of each row of the first table that has the column."""
    found: list[tuple[str, float]] = []
    place: int | None = None
    for line in (FOLDER / plot.page).read_text().splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            if found:
                break
            place = None
        elif place is None:
            named = [i for i, c in enumerate(cells) if c == plot.column]
            place = named[plot.nth] if len(named) > plot.nth else None
        elif place < len(cells) and (number := re.match(r"\**(\d+(?:\.\d+)?)", cells[place])):
            found.append((cells[0], float(number[1])))
    return found


def svg(plot: Plot, bars: Sequence[tuple[str, float]]) -> str:
    """Bars beside their names, and a line where both are the same."""
    scale = (WIDTH - LABEL - 60) / max(plot.line, *(n for _, n in bars))
    height = TOP + ROW * len(bars) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(plot.title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="26" font-size="16" fill="#222222">{escape(plot.title)}</text>',
    ]
    for place, (name, number) in enumerate(bars):
        y = TOP + ROW * place
        shade = "#35618f" if name.startswith("geometric") else "#7aa3cc"
        parts.append(f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end" fill="#222222">{escape(name)}</text>')
        parts.append(f'<rect x="{LABEL}" y="{y + 2}" width="{number * scale:.1f}" height="{ROW - 6}" fill="{shade}"/>')
        parts.append(f'<text x="{LABEL + number * scale + 6:.1f}" y="{y + 14}" fill="#222222">{number:g}</text>')
    x = LABEL + plot.line * scale
    parts.append(
        f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 8}" stroke="#b03030" stroke-dasharray="4 3"/>'
    )
    return "\n".join([*parts, "</svg>", ""])


def path(plot: Plot) -> Path:
    """Where a drawing lies."""
    return FOLDER / "images" / f"{plot.image}.svg"


if __name__ == "__main__":
    path(PLOTS[0]).parent.mkdir(exist_ok=True)
    for one in PLOTS:
        path(one).write_text(svg(one, rows(one)))
