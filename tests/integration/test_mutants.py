"""A fixed slice of the damaged and hostile files of tests/fuzz/mutants."""

from __future__ import annotations

from tests.fuzz.mutants.watch import KINDS, MEGABYTES, summary


def test_mutants():
    found = summary("mixed", 160, "slice")
    assert not found.bad and not found.ran
    assert sum(found.counts.values()) == 160
    assert {kind for kind, _ in found.counts} == {*KINDS}
    assert found.of("refused") > 60
    assert 0 < max(found.megabytes) <= MEGABYTES
