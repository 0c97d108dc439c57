"""The drawings of the benchmarks are those of their tables."""

from __future__ import annotations

import xml.dom.minidom
from pathlib import Path

import pytest

from benchmarks.plots import PLOTS, path, rows, svg

PAGE = Path(__file__).parents[2] / "docs" / "charts.md"


@pytest.mark.parametrize("plot", PLOTS, ids=lambda p: p.image)
def test_a_drawing_is_that_of_its_table(plot):
    found = rows(plot)
    assert len(found) > 3 and any(name.startswith("geometric") for name, _ in found)
    made = svg(plot, found)
    assert path(plot).read_text() == made, "make it anew: python -m benchmarks.plots"
    texts = [t.firstChild.data for t in xml.dom.minidom.parseString(made).getElementsByTagName("text")]
    for name, number in found:
        assert name in texts and f"{number:g}" in texts
    assert f"images/{plot.image}.svg" in PAGE.read_text()
