"""The garbage collector is held back inside, and as before outside."""

from __future__ import annotations

import gc
import threading

import pytest

from ir.collector import held_back


@held_back
def inside(error: Exception | None = None) -> bool:
    if error is not None:
        raise error
    return gc.isenabled()


def test_it_rests_inside_and_goes_on_after():
    assert gc.isenabled() and not inside() and gc.isenabled()


def test_it_goes_on_after_an_error():
    with pytest.raises(ValueError, match="oops"):
        inside(ValueError("oops"))
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_so():
    gc.disable()
    try:
        assert not inside() and not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_switches_it_on():
    both, first_is_done, seen = threading.Barrier(2), threading.Event(), []

    @held_back
    def first() -> None:
        both.wait()

    @held_back
    def second() -> None:
        both.wait()
        first_is_done.wait()
        seen.append(gc.isenabled())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    threads[0].join()
    first_is_done.set()
    threads[1].join()
    assert seen == [False] and gc.isenabled()
