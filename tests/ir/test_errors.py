"""Errors."""

from __future__ import annotations

from ir.errors import causes
from ir.words import near_ops


def test_what_errors_came_from_may_be_a_circle():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert list(causes(first)) == [first, second] and list(causes(None)) == []


def test_names_of_ops_are_proposed_that_are_near():
    known = ["aten::conv_transpose3d", "aten::softmax", "mine::gelu_fast"]
    assert near_ops("aten::cross_entropy_loss", known) == ()
    assert near_ops("aten::sofmax", known) == ("aten::softmax",)
    assert near_ops("other::gelu_fast", known) == ("mine::gelu_fast",)
