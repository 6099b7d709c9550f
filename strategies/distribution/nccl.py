"""Engine `nccl`: one process a GPU. Rows cross between the GPUs in grouped point-to-point calls; counts from host to
host, beside them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from strategies.distribution.communicator import Communicator, PeerSilentError, Pending, Terms, Transfer
from strategies.distribution.device_lane import DeviceLane, Tally
from strategies.distribution.gloo import peers_named
from strategies.distribution.host_group import HostGroup
from strategies.distribution.peer_lines import PeerLines

BACKSTOP_SECONDS = 10.0
"""NCCL's own watchdog strikes so much later than ours, which knows the stage."""


class NcclCommunicator(Communicator):
    """Uses the default process group for tensors on `device`, and a gloo group for those on the host.

    What a rank sends itself is copied, never sent. Exchanges run on a stream of their own: `wait` makes the computation
    that is queued after it wait, and not the host, so the rows sent must stay as they are until then. The host itself
    waits for what it has to know: counts. Exposed seconds are those for which the computation's stream stood still; for
    counts, and whatever else crosses between the hosts, they stand under the stage's name followed by ` counts`.

    On a CPU device, with a default group of gloo, the same code runs without streams.
    """

    engine = "nccl"

    def __init__(
        self,
        device: torch.device,
        host_group: dist.ProcessGroup,
        timeout: float,
        pace: float | None = None,
        lines: PeerLines | None = None,
    ) -> None:
        """lines: between all ranks, for small rows that all are told, such as counts; None: they go over the group."""
        super().__init__(dist.get_rank(), dist.get_world_size(), device)
        self.pace = pace
        self._host = HostGroup(host_group, self.rank, device, lines)
        self._timeout = timeout
        self._lane = DeviceLane(device, timeout, self._silence, pace) if device.type == "cuda" else None

    def counts(self, stage: str, send: torch.Tensor) -> Pending:
        """As of any communicator; send may lie on the GPU: it is brought to the host while the caller goes on."""
        if send.shape[0] != self.ranks:
            raise ValueError(f"{stage}: rank {self.rank} has counts for {send.shape[0]} of {self.ranks} ranks")
        row = send[0].numel() * 8
        self.ledger.add(stage, self.rank, [row] * self.ranks, metadata=True, over_link=False)
        ones = [1] * self.ranks
        return Pending(self, stage, self._between_hosts(stage, send.to(torch.int64), ones, ones))

    def mark(self) -> object | None:
        return None if self._lane is None else self._lane.mark()

    def settle(self) -> None:
        if self._lane is not None:
            self._lane.settle()
        for stage, seconds in self.hidden_seconds.items():
            self.hidden_seconds[stage] = max(0.0, seconds)

    def close(self) -> None:
        """End the threads; collective calls must be over."""
        self._host.close()
        if self._lane is not None:
            self._lane.close()

    def _over_link(self, send: torch.Tensor) -> bool:
        return send.device.type == self.device.type == "cuda"

    def _paced(self, row: int, send_counts: object, receive_counts: object) -> float:
        return 0.0  # The lane holds exchanges to the rate, on the device.

    def _exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int], terms: Terms
    ) -> Transfer:
        if send.device.type != self.device.type:
            return self._between_hosts(stage, send, send_counts, receive_counts)
        received = send.new_empty((sum(receive_counts), *send.shape[1:])) if terms.into is None else terms.into
        if self._lane is None:
            works = self._post(send, received, send_counts, receive_counts, terms.own)

            def finish() -> torch.Tensor:
                with peers_named(stage, self.rank):
                    for work in works:
                        work.wait()
                return received

            return Transfer(finish)
        self._host.start_ready()
        lane = self._lane
        most = max(sum(counts) - counts[self.rank] for counts in (send_counts, receive_counts))
        size = most * math.prod(send.shape[1:]) * send.element_size()
        after = terms.after if isinstance(terms.after, torch.cuda.Event) else None
        with lane.crossing(self._tally(stage), size, after) as crossing:
            for work in self._post(send, received, send_counts, receive_counts, terms.own):
                work.wait()  # Makes the lane wait, not the host.

        def join() -> torch.Tensor:
            if kept:  # Once: its events are another's afterwards.
                lane.join(crossing)
                # Until the computation waits for the exchange, nothing else may be given the memory of what is sent.
                del kept[:]
            return received

        kept = [send]
        return Transfer(join, timed=True)

    @contextmanager
    def _accompanied(self, stage: str, bytes_to: Sequence[int], bytes_from: Sequence[int]) -> Iterator[None]:
        if self._lane is None:
            with super()._accompanied(stage, bytes_to, bytes_from):
                yield
            return
        size = max(sum(sizes) - sizes[self.rank] for sizes in (bytes_to, bytes_from))
        self.on_wait(stage)
        with self._lane.inline(self._tally(stage), size):
            yield
        self.on_wait(None)

    def _post(
        self, send: torch.Tensor, received: torch.Tensor, send_counts: list[int], receive_counts: list[int], own: bool
    ) -> list[dist.Work]:
        """Start what goes to and comes from others, on the current stream; own: copy the rank's own rows too.

        Returns what is to be waited for before the rows are there. Nothing of it makes the host wait on a GPU.
        """
        works: Sequence[dist.Work | None] = ()
        if self._lane is not None and self.ranks == 2:
            # What goes to the only other one is a run of rows, and this call takes the host the least.
            peer = 1 - self.rank
            to, come = [0, 0], [0, 0]
            to[peer], come[peer] = send_counts[peer], receive_counts[peer]
            if to[peer] or come[peer]:  # The other rank knows as well that nothing crosses.
                dist.all_to_all_single(_part(received, receive_counts, peer), _part(send, send_counts, peer), come, to)
        else:
            calls = []
            for peer in range(self.ranks):
                if peer == self.rank:
                    continue
                if send_counts[peer]:
                    calls.append(dist.P2POp(dist.isend, _part(send, send_counts, peer), peer))
                if receive_counts[peer]:
                    calls.append(dist.P2POp(dist.irecv, _part(received, receive_counts, peer), peer))
            works = dist.batch_isend_irecv(calls) if calls else ()
        if own:
            _part(received, receive_counts, self.rank).copy_(_part(send, send_counts, self.rank))
        return [work for work in works if work is not None]

    def _between_hosts(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int]
    ) -> Transfer:
        coming = self._host.exchange(stage, send, send_counts, receive_counts)
        if self._lane is None:
            return Transfer(coming.result, lambda: coming.moment)
        # Under a name of their own: the stage's seconds are those of the rows between the devices.
        lane, tally = self._lane, self._tally(f"{stage} counts")

        def finish() -> torch.Tensor:
            with lane.standstill(tally):
                return coming.result()

        return Transfer(finish, timed=True)

    def _tally(self, stage: str) -> Tally:
        return Tally(stage, self.exposed_seconds, self.hidden_seconds)

    def _barrier(self) -> None:
        self._host.barrier()

    def _silence(self, stage: str) -> None:
        text = f"{stage}: rank {self.rank} waited in vain for the other ranks, {self._timeout:g} s"
        self.on_silence(PeerSilentError(text))


def connect(timeout: float, pace: float | None = None) -> NcclCommunicator:
    """Join the ranks that torchrun has started on this machine, a GPU each; connections are made at once.

    timeout: seconds that a collective may take.
    """
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    options = dist.ProcessGroupNCCL.Options()
    # Records wait for nobody's multiprocessors: what is exchanged holds up other ranks.
    options.is_high_priority_stream = True
    limit = timedelta(seconds=timeout + BACKSTOP_SECONDS)
    dist.init_process_group("nccl", timeout=limit, device_id=device, pg_options=options)
    hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return NcclCommunicator(device, hosts, timeout, pace, PeerLines.between(hosts, timeout))


def _part(rows: torch.Tensor, counts: list[int], rank: int) -> torch.Tensor:
    """A rank's, of rows packed by rank."""
    first = sum(counts[:rank])
    return rows[first : first + counts[rank]]
