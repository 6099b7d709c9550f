"""The exchanges of a batch by themselves: what of a step's time is packing, sending and unpacking."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.layout import GRADIENT, GRADIENT_STRIDE
from strategies.base import ExchangeTrial
from strategies.distribution.codec import STAGE as RETURN_STAGE
from strategies.distribution.gaussian_exchange import GaussianExchange, Passage
from strategies.distribution.turns import Turns


def trials_of(exchange: GaussianExchange, passages: Sequence[Passage], turns: Turns) -> list[ExchangeTrial]:
    """Records on their way there, and gradients on their way back, of passages of a batch that have arrived.

    Gradients only where all of them travel: else their bytes follow from values that only a step makes.
    """
    real, rank = exchange.kernels.dtype, exchange.comm.rank

    def forward() -> None:
        for passage in passages:
            passage.pack_again()
        Passage.depart_in_turns(passages, turns)
        for passage in passages:
            passage.arrive()

    there = _rows(rank, turns, [p.rows_to for p in passages], [p.rows_from for p in passages])
    trials = [ExchangeTrial(passages[0].stage, exchange.width * real.itemsize, there, forward)]
    if exchange.codec.moves_own:
        return trials
    most = max(sum(passage.rows_from) for passage in passages)
    gradients = torch.ones((most, GRADIENT_STRIDE), dtype=real, device=exchange.comm.device)[:, :GRADIENT]

    def backward() -> None:
        for number in turns.back.orders[rank]:
            passages[number].give_back(gradients[: sum(passages[number].rows_from)], number)
        for passage in passages:
            passage.proceed()
        for passage in passages:
            passage.collect()

    back = _rows(rank, turns.back, [p.rows_from for p in passages], [p.rows_to for p in passages])
    return [*trials, ExchangeTrial(RETURN_STAGE, SENT_GRADIENTS * real.itemsize, back, backward)]


def _rows(
    rank: int, turns: Turns, to: Sequence[list[int]], back: Sequence[list[int]]
) -> tuple[tuple[list[int], list[int]], ...]:
    """By turn, rows to and from each rank, none for the rank itself. to, back: by view."""

    def others(rows: Sequence[int]) -> list[int]:
        return [0 if other == rank else n for other, n in enumerate(rows)]

    at = [turns.at(turn) for turn in range(turns.views)]
    came = [[back[view][source] for source, view in enumerate(views)] for views in at]
    return tuple((others(to[views[rank]]), others(rows)) for views, rows in zip(at, came, strict=True))
