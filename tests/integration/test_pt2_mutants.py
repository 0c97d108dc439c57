"""A fixed slice of the damaged and hostile .pt2 files of tests/fuzz/pt2_mutants.py."""

from tests.fuzz.pt2_mutants import summary


def test_mutants():
    counts, bad, ran = summary(60, 5)
    assert not bad and not ran
    assert sum(counts.values()) == 60
    assert sum(n for (_, outcome), n in counts.items() if outcome == "refused") > 30
