"""What counts as equal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ir
from ir.importer.other_sizes import _stretched
from ir.verify import held_to_float64, rows


def compared(actual, expected, **options):
    return ir.compare(["y"], [np.asarray(actual)], [np.asarray(expected)], **options)


def f(*values):
    return np.array(values, dtype=np.float32)


def test_equal_within_the_tolerance_of_the_largest_value():
    assert compared(f(1000, 0.05), f(1000, 0.0)).ok
    assert not compared(f(1000, 0.2), f(1000, 0.0)).ok
    assert not compared(f(1e-3), f(2e-3)).ok


def test_the_slack_shrinks_with_the_results():
    assert not compared(f(2e-3, 5e-6), f(2e-3, 0.0)).ok
    assert compared(f(2e-3, 1e-7), f(2e-3, 0.0)).ok


def test_float64_is_held_to_float64():
    exact = np.random.default_rng(0).standard_normal(100)
    assert compared(exact * (1 + 1e-12), exact).ok and compared(exact.astype(complex), exact.astype(complex)).ok
    assert not compared(exact.astype(np.float32).astype(np.float64), exact).ok
    assert not compared(exact.astype(np.complex64).astype(complex), exact.astype(complex)).ok


def test_a_given_atol_is_absolute():
    assert not compared(f(1000, 0.05), f(1000, 0.0), atol=1e-4).ok
    assert compared(f(1000, 0.05), f(1000, 0.0), atol=0.1).ok


def test_nan_and_infinity():
    assert compared(f(np.nan, np.inf, -np.inf), f(np.nan, np.inf, -np.inf)).ok
    for wrong in (f(0, np.inf), f(np.nan, 1e30), f(np.nan, -np.inf), f(np.nan, np.nan)):
        assert not compared(wrong, f(np.nan, np.inf)).ok


def test_dtype_shape_and_integers_are_exact():
    assert not compared(f(1), np.array([1.0])).ok
    assert not compared(f(1), f(1, 1)).ok
    assert not compared(np.array([3]), np.array([4])).ok
    assert compared(np.zeros((0, 3)), np.zeros((0, 3))).ok


def test_random_results_compare_by_shape():
    assert compared(f(1), f(5), values=False).ok
    assert not compared(f(1), f(5, 5), values=False).ok


def test_check_names_what_differs():
    with pytest.raises(ir.MismatchError, match="1 of 2 elements differ"):
        compared(f(1, 2), f(1, 3)).check()


# -- held to float64 where torch's own float32 is as far from it -------------------------------------------------------


def judged(ours, own, count=4096, scale=1.0, seed=0):
    """A result beyond the tolerance whose errors, and torch's own, have these root mean squares."""
    draw = np.random.default_rng(seed).standard_normal
    exact = scale * np.tanh(draw(count))
    expected, actual = ((exact + scale * rms * draw(count)).astype(np.float32) for rms in (own, ours))
    (row,) = rows(["y"], [actual], [expected])
    assert not row.ok
    return held_to_float64(row, actual, expected, exact)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_two_roundings_of_the_same_size_are_equal(scale):
    row = judged(8e-5, 8e-5, scale=scale)
    assert row.ok and "torch's own float32 is" in str(row) and "MISMATCH" not in str(row)


@pytest.mark.parametrize(("ours", "own"), [(2.5e-4, 8e-5), (8e-5, 3e-5), (1e-3, 1e-3), (3e-4, 2e-4)])
def test_what_is_further_from_float64_than_torch_differs(ours, own):
    """Also where torch's own float32 is too far from it to say anything."""
    row = judged(ours, own)
    assert not row.ok and "torch's own float32 is" in str(row)


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 2e-3])
def test_one_wrong_element_differs(spoil):
    noise = np.random.default_rng(0).standard_normal((3, 1000))
    exact = noise[0]
    expected, actual = ((exact + 9e-5 * n).astype(np.float32) for n in noise[1:])
    actual[7] += np.float32(spoil)
    (row,) = rows(["y"], [actual], [expected])
    assert not held_to_float64(row, actual, expected, exact).ok


def test_what_float64_makes_infinite_or_another_shape_is_left_alone():
    row = judged(1e-3, 8e-5)
    a = np.zeros(4, np.float32)
    for exact in (np.full(4, np.inf), np.zeros(5), np.zeros(4, np.float32)):
        assert held_to_float64(row, a, a, exact) is row


def test_rows_of_other_sizes_make_no_ties():
    """The order of equal elements is free, in a top-k of a detector for instance."""
    scores, mask, ids = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.0]), torch.tensor([3, 9])
    assert _stretched(scores, (5,)).tolist() == [1.0, 1.5, 2.0, 3.0, 4.0]
    assert _stretched(mask, (4,)).tolist() == [1.0, 1.0, 0.0, 0.0] and _stretched(ids, (3,)).tolist() == [3, 3, 9]
    assert _stretched(scores[:1].half(), (2,)).tolist() == [1.0, 1.0]
