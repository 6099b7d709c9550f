"""View queues: shuffled passes, the same on all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.views import ViewQueue

bounded = settings(max_examples=25, deadline=None)


def taken(queue: ViewQueue, n: int, at_once: int = 1) -> list[int]:
    views: list[int] = []
    while len(views) < n:
        views += queue.take(queue.peek(min(at_once, n - len(views))))
    return views


@bounded
@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), passes=st.integers(1, 4))
def test_every_pass_shows_every_view_once(seed, n, passes):
    views = [10 * i + 3 for i in range(n)]
    order = taken(ViewQueue(views, seed), n * passes)
    for k in range(passes):
        assert sorted(order[k * n : (k + 1) * n]) == views


def test_passes_are_shuffled_differently_and_repeat_with_the_seed():
    views = list(range(20))
    order = taken(ViewQueue(views, seed=5), 60)
    assert len({tuple(order[k : k + 20]) for k in (0, 20, 40)}) == 3
    assert taken(ViewQueue(views, seed=5), 60) == order
    assert taken(ViewQueue(views, seed=6), 60) != order


@bounded
@given(seed=st.integers(0, 1000), batch=st.integers(1, 7))
def test_the_order_does_not_depend_on_how_many_are_taken_at_once(seed, batch):
    views = list(range(5))
    assert taken(ViewQueue(views, seed), 30, batch) == taken(ViewQueue(views, seed), 30)


def test_without_shuffling_the_given_order_repeats():
    assert taken(ViewQueue([4, 2, 9], shuffle=False), 7) == [4, 2, 9, 4, 2, 9, 4]


def test_looking_takes_nothing_even_beyond_the_pass():
    queue = ViewQueue([1, 2, 3], seed=1)
    ahead = queue.peek(8)
    assert queue.peek(8) == ahead
    assert queue.peek(2) == ahead[:2]
    assert taken(queue, 8) == ahead


def test_views_may_be_taken_out_of_turn_and_the_others_keep_theirs():
    queue = ViewQueue(list(range(6)), seed=2)
    ahead = queue.peek(6)
    assert queue.take([ahead[3], ahead[1]]) == [ahead[3], ahead[1]]
    assert queue.peek(4) == [ahead[0], ahead[2], ahead[4], ahead[5]]


def test_a_view_that_occurs_twice_is_taken_once():
    queue = ViewQueue([1, 2], shuffle=False)
    assert queue.peek(4) == [1, 2, 1, 2]
    queue.take([2])
    assert queue.peek(3) == [1, 1, 2]


def test_kept_passes_show_nothing_of_the_next_before_the_last_view_is_taken():
    queue = ViewQueue([1, 2, 3], shuffle=False, keep_passes=True)
    assert queue.peek(8) == [1, 2, 3]
    queue.take([1, 3])
    assert queue.peek(8) == [2]
    queue.take([2])
    assert queue.peek(2) == [1, 2]


def test_taking_what_was_not_seen_is_an_error():
    queue = ViewQueue([1, 2, 3], seed=0)
    with pytest.raises(ValueError, match="not in list"):
        queue.take([1])


def test_an_empty_queue_is_an_error():
    with pytest.raises(ValueError, match="at least one view"):
        ViewQueue([])
