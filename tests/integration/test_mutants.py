"""A fixed slice of the damaged and hostile files of tests/fuzz/mutants."""

from __future__ import annotations

from collections import Counter

from tests.fuzz import page
from tests.fuzz.mutants.watch import KINDS, MEGABYTES, Summary, summary


def test_mutants():
    found = summary("mixed", 160, "slice")
    assert not found.bad and not found.ran
    assert sum(found.counts.values()) == 160
    assert {kind for kind, _ in found.counts} == {*KINDS}
    assert found.of("refused") > 60
    assert 0 < max(found.megabytes) <= MEGABYTES


def test_the_page_keeps_its_other_section(tmp_path, monkeypatch):
    whole = page.FILE.read_text()
    monkeypatch.setattr(page, "FILE", tmp_path / "fuzz.md")
    page.FILE.write_text(whole)
    programs = {0: [{"target": "onnx", "kind": "equal"}], 1: [{"target": "onnx", "kind": "refused"}]}
    page.write("a", programs, ["onnx"])
    text = page.FILE.read_text()
    assert "| onnx | 2 | 1 | 0 | 1 (50.0 %) | 0 | 0 |" in page.section(text, "counts")
    assert page.section(text, "mutants") == page.section(whole, "mutants")
    found = Summary(Counter({("bytes", "refused"): 3, ("bytes", "the same"): 1}), [], False, (300, 40))
    for seed in ("b", "c"):
        page.write_mutants("archives", seed, found)
    after = page.FILE.read_text()
    rows = [line for line in page.section(after, "mutants").splitlines() if line.startswith("| archives |")]
    assert rows == ["| archives | c | 4 | 3 | 1 the same | none | 0 | 0 | 0 | 0 | 300 / 40 |"]
    assert page.section(after, "counts") == page.section(text, "counts")
