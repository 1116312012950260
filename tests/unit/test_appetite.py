"""How many letters are asked for at once."""

from __future__ import annotations

import pytest

from consumers.appetite import Appetite

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("in_hand", [2, 3, 16, 4000])
def test_large_letters_come_one_at_a_time(in_hand: int) -> None:
    """However many small ones were asked for before, two as well: two of 10 MB take too much memory (D1)."""
    appetite = Appetite(most=4000, budget_bytes=16 * MEGABYTE)
    appetite.current = in_hand
    appetite.saw(10 * MEGABYTE)
    appetite.change()
    assert appetite.current == 1


def test_small_letters_after_large_ones_come_many_at_a_time() -> None:
    """Large ones are forgotten after some hundred small ones (D1)."""
    appetite = Appetite(most=4000, budget_bytes=16 * MEGABYTE)
    appetite.saw(10 * MEGABYTE)
    assert appetite.wanted == 1
    for _ in range(500):
        appetite.saw(100)
    assert appetite.wanted > 1000


def test_large_letters_behind_small_ones_are_too_much_only_once() -> None:
    """What was in hand comes again, the small ones first: few are asked for until all of it has come (D1)."""
    appetite = Appetite(most=4000, budget_bytes=16 * MEGABYTE)
    appetite.current = 1000
    for size in (0, 0, 10 * MEGABYTE):
        appetite.saw(size)
    assert not appetite.draws_back(1, 20 * MEGABYTE)  # one alone may be of any size
    assert not appetite.draws_back(3, 10 * MEGABYTE)
    assert appetite.draws_back(4, 20 * MEGABYTE)
    assert appetite.current == 1
    for _ in range(999):
        appetite.saw(100)
    assert appetite.wanted == 16
    appetite.saw(100)
    assert appetite.wanted > 1000
