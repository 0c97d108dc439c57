"""Errors."""

from __future__ import annotations

from ir.errors import causes


def test_what_errors_came_from_may_be_a_circle():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert list(causes(first)) == [first, second] and list(causes(None)) == []
