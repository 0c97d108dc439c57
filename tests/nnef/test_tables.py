"""Tables of NNEF operations and of functions of sizes, against those that hold all of them."""

from __future__ import annotations

from ir.dim_functions import BOOL, FUNCTIONS
from nnef_backend.building import hiding, library, operators, sizes, verbs


def test_names_are_of_operations():
    named = {
        *operators.REARRANGEMENTS, *operators.ROUNDINGS, *operators.CONTRACTIONS, *operators._SINCE, *hiding._NEUTRAL,
        *verbs._REDUCTIONS.values(), *sizes._BINARY.values(), *sizes._ROUNDING.values(), *sizes._COMPARISONS,
        *sizes._BOOLEAN.values(),
    }  # fmt: skip
    assert named <= operators.OPERATORS.keys()


def test_what_no_handler_emits_is_not_declared():
    assert not library.STANDARD & operators.OPERATORS.keys()


def test_functions_of_sizes_exist():
    assert FUNCTIONS.keys() >= {*sizes._ARITHMETIC, *sizes._BINARY, *sizes._ROUNDING, *sizes._BOOLEAN}
    assert BOOL - {"not", "and", "or"} == sizes._COMPARISONS
