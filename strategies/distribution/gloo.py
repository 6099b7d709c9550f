"""Engine `gloo`: one process a rank over torch.distributed, for CPUs."""

from __future__ import annotations

from time import perf_counter

import torch
import torch.distributed as dist

from strategies.distribution.communicator import Communicator, Transfer


class GlooCommunicator(Communicator):
    """Uses the default process group, which the caller has started with gloo."""

    engine = "gloo"

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))

    def _exchange(self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int]) -> Transfer:
        received = send.new_empty((sum(receive_counts), *send.shape[1:]))
        work = dist.all_to_all_single(received, send, receive_counts, send_counts, async_op=True)
        arrived: list[float] = []
        work.get_future().add_done_callback(lambda _: arrived.append(perf_counter()))

        def finish() -> torch.Tensor:
            try:
                work.wait()
            except RuntimeError as error:
                raise RuntimeError(f"{stage}: rank {self.rank}: exchange failed: {error}") from error
            return received

        return Transfer(finish, lambda: arrived[0] if arrived else None)

    def _barrier(self) -> None:
        dist.barrier()
