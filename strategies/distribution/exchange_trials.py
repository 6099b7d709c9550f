"""The exchanges of a batch by themselves: what of a step's time is packing, sending and unpacking."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.layout import GRADIENT, GRADIENT_STRIDE
from strategies.base import ExchangeTrial
from strategies.distribution.codec import STAGE as RETURN_STAGE
from strategies.distribution.gaussian_exchange import GaussianExchange, Passage


def trials_of(exchange: GaussianExchange, passages: Sequence[Passage]) -> list[ExchangeTrial]:
    """Records on their way there, and gradients on their way back, of passages that have arrived.

    Gradients only where all of them travel: else their bytes follow from values that only a step makes.
    """
    real = exchange.kernels.dtype

    def forward() -> None:
        for passage in passages:
            passage.pack_again()
        for passage in passages:
            passage.depart()
        for passage in passages:
            passage.arrive()

    there = tuple((_others(exchange, p.rows_to), _others(exchange, p.rows_from)) for p in passages)
    trials = [ExchangeTrial(passages[0].stage, exchange.width * real.itemsize, there, forward)]
    if exchange.codec.moves_own:
        return trials
    most = max(sum(passage.rows_from) for passage in passages)
    gradients = torch.ones((most, GRADIENT_STRIDE), dtype=real, device=exchange.comm.device)[:, :GRADIENT]

    def backward() -> None:
        for number, passage in enumerate(passages):
            passage.give_back(gradients[: sum(passage.rows_from)], number)
        for passage in passages:
            passage.proceed()
        for passage in passages:
            passage.collect()

    back = tuple((came, sent) for sent, came in there)
    return [*trials, ExchangeTrial(RETURN_STAGE, SENT_GRADIENTS * real.itemsize, back, backward)]


def _others(exchange: GaussianExchange, rows: Sequence[int]) -> list[int]:
    """Without those of the rank itself."""
    return [0 if rank == exchange.comm.rank else n for rank, n in enumerate(rows)]
