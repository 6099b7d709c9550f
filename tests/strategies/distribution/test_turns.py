"""Turns: every view crosses once and nobody waits for more than its rows; with a view a rank, nobody shares a turn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.distribution.turns import InTurns, Turns

TILES = 12


def regions(*cuts: int, views: int) -> SimpleNamespace:
    return SimpleNamespace(cameras=[None] * views, tiles=tuple(TILES * v for v in range(views + 1)), cuts=cuts)


@st.composite
def batches(draw) -> SimpleNamespace:
    """Ranks without work among them."""
    views, ranks = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    inner = draw(st.lists(st.integers(0, TILES * views), min_size=ranks - 1, max_size=ranks - 1))
    return regions(0, *sorted(inner), TILES * views, views=views)


@given(batch=batches())
def test_every_rank_comes_to_every_view_once_there_and_back(batch):
    turns = Turns.of(batch)
    for way in (turns, turns.back):
        assert len(way.orders) == len(batch.cuts) - 1
        assert all(sorted(order) == list(range(len(batch.cameras))) for order in way.orders)


@given(batch=batches())
def test_what_a_rank_waits_for_brings_its_rows_from_all_others_and_no_later_turn(batch):
    turns = Turns.of(batch)
    for rank in range(len(turns.orders)):
        for view in range(turns.views):
            brings = [
                turn for turn in range(turns.views) for r, v in enumerate(turns.at(turn)) if v == view and r != rank
            ]
            assert turns.last(rank, view) == max(brings, default=turns.orders[rank].index(view))
        complete = [turns.last(rank, view) for view in turns.back.orders[rank]]
        assert complete == sorted(complete)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_with_a_view_a_rank_each_sends_to_one_and_hears_from_one_at_a_time(ranks):
    turns = Turns.of(regions(*(TILES * rank for rank in range(ranks + 1)), views=ranks))
    for turn in range(ranks):
        assert sorted(turns.at(turn)) == list(range(ranks))
    for rank in range(ranks):
        assert turns.orders[rank][-1] == turns.back.orders[rank][0] == rank


def test_where_a_cut_lies_within_a_view_the_larger_part_counts():
    turns = Turns.of(regions(0, TILES + 3, 2 * TILES, views=2))
    assert turns.orders == ((1, 0), (0, 1))
    assert turns.back.orders == ((0, 1), (1, 0))


def test_alike_is_one_view_at_a_time_for_all():
    turns = Turns.alike(3, 2)
    assert turns.orders == turns.back.orders == ((0, 1),) * 3


def test_exchanges_are_waited_for_once_and_in_order_and_begin_anew_behind_the_last():
    exchanges, waited = InTurns(Turns(((1, 0), (0, 1))), rank=0), []

    def began(name: str) -> None:
        def arrive() -> str:
            waited.append(name)
            return name

        exchanges.begun(arrive)

    for visit in "ab":
        assert exchanges.next == (1, 0)
        began(visit + "0")
        assert exchanges.next == (0, 1)
        began(visit + "1")
        assert exchanges.wait(1) == visit + "1"
        assert exchanges.wait(0) == visit + "0"
    assert waited == ["a0", "a1", "b0", "b1"]
