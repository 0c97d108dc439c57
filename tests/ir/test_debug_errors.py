"""How far tensors lie apart, and many small comparisons at once."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from ir.debug.errors import distance, is_beyond_rounding, kinds_in
from ir.debug.side_by_side import side_by_side

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("number", [1.0, 1.5, -4.0, 0.25])
def test_the_next_number_of_the_type_is_one_unit_away(dtype, number):
    step = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(abs(number)))
    wanted = torch.tensor([number, 8.0], dtype=dtype)
    found = distance(torch.tensor([number + step, 8.0], dtype=torch.float64).to(dtype), wanted)
    assert (found.ulps, found.largest, found.scale, found.place) == (1.0, step, 8.0, (0,))


def test_zero_has_the_unit_of_the_largest_magnitude():
    found = distance(torch.tensor([2.0**-20, 1.0]), torch.tensor([0.0, 1.0]))
    assert found.ulps == 2.0**-20 / torch.finfo(torch.float32).eps


def test_float64_beside_a_narrow_type_has_the_units_of_the_narrow_one():
    found = distance(torch.tensor([1.0], dtype=torch.float16), torch.tensor([1.0 + 2.0**-12]).double(), checked=False)
    assert found.ulps == 0.25


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int64], ids=str)
def test_integers_and_bools(dtype):
    found = distance(torch.tensor([1, 0]).to(dtype), torch.tensor([1, 1]).to(dtype))
    assert (found.largest, found.ulps, found.place) == (1.0, 1.0, (1,)) and found.reason
    assert is_beyond_rounding(found, dtype)


@pytest.mark.parametrize("dtype", [*FLOATS[:4], FLOATS[5], torch.complex64], ids=str)
def test_what_is_not_finite(dtype):
    odd = torch.tensor([1.0, math.inf, math.nan]).to(dtype)
    assert kinds_in(odd) == {"inf", "nan"} and kinds_in(odd[:2]) == {"inf"} and kinds_in(odd[:1]) == set()
    assert distance(odd, odd.clone()).largest == 0
    found = distance(torch.tensor([1.0, 2.0, math.nan]).to(dtype), odd)
    assert math.isinf(found.largest) and found.scale == 1 and found.place[0] == 1


def test_many_at_once_take_one_thread_of_torch_each():
    before, met = torch.get_num_threads(), threading.Barrier(2)
    torch.set_num_threads(2)
    try:

        def one(number: int) -> tuple[int, int]:
            met.wait(20)  # both are at work, or this fails
            return number, torch.get_num_threads()

        assert side_by_side(one, [1, 2], at_once=9) == [(1, 1), (2, 1)]
        for large, took in ((False, 1), (True, 2)):
            found = side_by_side(lambda n: (n, torch.get_num_threads()), [1, 2], at_once=0, large=large)
            assert found == [(1, took), (2, took)]
        with pytest.raises(ZeroDivisionError):
            side_by_side(lambda n: 1 // n, [1, 0], at_once=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
