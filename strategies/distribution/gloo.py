"""Engine `gloo`: one process a rank over torch.distributed, for CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
import torch.distributed as dist

from strategies.distribution.communicator import Communicator, PeerFailedError, PeerSilentError, Terms, Transfer


class GlooCommunicator(Communicator):
    """Uses the default process group, which the caller has started with gloo, and its timeout."""

    engine = "gloo"

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))

    def _exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int], terms: Terms
    ) -> Transfer:
        received = send.new_empty((sum(receive_counts), *send.shape[1:]))
        work = dist.all_to_all_single(received, send, receive_counts, send_counts, async_op=True)
        arrived: list[float] = []
        work.get_future().add_done_callback(lambda _: arrived.append(perf_counter()))

        def finish() -> torch.Tensor:
            with peers_named(stage, self.rank):
                work.wait()
            return received if terms.into is None else terms.place(received.split(receive_counts), self.rank)

        return Transfer(finish, lambda: arrived[0] if arrived else None)

    def _barrier(self) -> None:
        with peers_named("barrier", self.rank):
            dist.barrier()


@contextmanager
def peers_named(stage: str, rank: int) -> Iterator[None]:
    """What gloo raises, as what it means: it tells a dead peer from a silent one only in words."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if "timed out" in text or "timeout" in text:
            raise PeerSilentError(f"{stage}: rank {rank} waited in vain for the other ranks") from error
        if "connection" in text or "broken pipe" in text:
            raise PeerFailedError(f"{stage}: rank {rank} lost another rank") from error
        raise RuntimeError(f"{stage}: rank {rank}: {error}") from error
