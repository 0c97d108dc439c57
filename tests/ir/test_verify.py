"""What counts as equal."""

from __future__ import annotations

import numpy as np
import pytest

import ir


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
