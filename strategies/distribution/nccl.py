"""Engines `nccl` and `symmetric`: one process a GPU. Rows cross between the GPUs in grouped point-to-point calls, or
are copied into one another's windows; counts from host to host, beside them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import accumulate

import torch
import torch.distributed as dist

from cuda_src.tape import act
from strategies.distribution.communicator import Communicator, PeerSilentError, Pending, Terms, Transfer
from strategies.distribution.device_lane import DeviceLane, Mark, Tally
from strategies.distribution.gloo import peers_named
from strategies.distribution.host_group import HostGroup
from strategies.distribution.nccl_peers import NcclPeers, Rows
from strategies.distribution.peer_lines import PeerLines
from strategies.distribution.peer_windows import PeerWindows

BACKSTOP_SECONDS = 10.0
"""NCCL's own watchdog strikes so much later than ours, which knows the stage."""


class NcclCommunicator(Communicator):
    """Uses a communicator of NCCL for tensors on `device`, and a gloo group for those on the host.

    What a rank sends itself is copied, never sent. Exchanges run on a stream of their own: `wait` makes the computation
    that is queued after it wait, and not the host, so the rows sent must stay as they are until then. The host itself
    waits for what it has to know: counts. Exposed seconds are those for which the computation's stream stood still; for
    counts, and whatever else crosses between the hosts, they stand under the stage's name followed by ` counts`.

    On a CPU device, with a default group of gloo in place of NCCL, the same code runs without streams.
    """

    def __init__(
        self,
        device: torch.device,
        host_group: dist.ProcessGroup,
        timeout: float,
        pace: float | None = None,
        lines: PeerLines | None = None,
        peers: NcclPeers | None = None,
        windows: bool = False,
    ) -> None:
        """lines: between all ranks, for small rows that all are told, such as counts; None: they go over the group.
        peers: what moves rows between GPUs; None where there are none. windows: memory that they write of each other's,
        with which the engine is `symmetric`."""
        super().__init__(dist.get_rank(), dist.get_world_size(), device)
        self.pace = pace
        self._host = HostGroup(host_group, self.rank, device, lines)
        self._timeout = timeout
        self._peers = peers
        self._windows = PeerWindows(device, self._host.barrier) if windows else None
        self.engine = "symmetric" if windows else "nccl"
        self._lane = None if peers is None else DeviceLane(device, timeout, self._silence, pace)
        self._tallies: dict[str, Tally] = {}

    def counts(self, stage: str, send: torch.Tensor) -> Pending:
        """As of any communicator; send may lie on the GPU: it is brought to the host while the caller goes on."""
        if send.shape[0] != self.ranks:
            raise ValueError(f"{stage}: rank {self.rank} has counts for {send.shape[0]} of {self.ranks} ranks")
        row = send[0].numel() * 8
        self.ledger.add(stage, self.rank, [row] * self.ranks, metadata=True, over_link=False)
        ones = [1] * self.ranks
        return Pending(self, stage, lambda: self._between_hosts(stage, send.to(torch.int64), ones, ones))

    def windows(self, name: str, size: int) -> list[torch.Tensor] | None:
        return None if self._windows is None else self._windows.take(name, size)

    def mark(self) -> object | None:
        lane = self._lane
        if lane is None:
            return None
        mark = Mark()

        def made() -> None:
            mark.event = lane.mark()

        act(made)
        return mark

    def fork(self) -> AbstractContextManager[None]:
        lane, here = self._lane, self.mark()
        if lane is None or not isinstance(here, Mark):
            return nullcontext()

        def go() -> None:
            assert here.event is not None
            lane.go_beside(here.event)

        @contextmanager
        def beside() -> Iterator[None]:
            act(go)
            try:
                yield
            finally:
                act(lane.come_back)

        return beside()

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
        if self._peers is not None:
            self._peers.close()

    def last_exchanges(self) -> list[dict[str, str | int]]:
        """For the flight recorder: stage, bytes and state of the exchanges between devices that were begun last."""
        return [] if self._lane is None else self._lane.events()

    def _over_link(self, send: torch.Tensor) -> bool:
        return send.device.type == self.device.type == "cuda"

    def _paced(self, row: int, send_counts: object, receive_counts: object) -> float:
        return 0.0  # The lane holds exchanges to the rate, on the device.

    def _exchange(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int], terms: Terms
    ) -> Transfer:
        if send.device.type != self.device.type:
            return self._between_hosts(stage, send, send_counts, receive_counts)
        if terms.into is None:
            terms = replace(terms, into=send.new_empty((sum(receive_counts), *send.shape[1:])))
        assert terms.into is not None
        received = terms.received
        if self._lane is None:
            works = self._post(send.split(send_counts), terms.places(receive_counts), terms.own)

            def finish() -> torch.Tensor:
                with peers_named(stage, self.rank):
                    for work in works:
                        work.wait()
                return received

            return Transfer(finish)
        self._host.start_ready()
        lane = self._lane
        row = math.prod(send.shape[1:]) * send.element_size()
        sends, receives = self._rows(send, send_counts, row), self._rows(terms.into, receive_counts, row)
        after = terms.after.event if isinstance(terms.after, Mark) else None
        size = max(sum(n for *_, n in rows) for rows in (sends, receives))
        crossing = lane.begin(self._tally(stage), size, after)
        if terms.there is not None:
            assert self._windows is not None
            with torch.cuda.stream(lane.stream):
                self._windows.exchange(send.split(send_counts), terms.there, receive_counts)
        elif sends or receives:
            assert self._peers is not None
            self._peers.exchange(lane.stream.cuda_stream, sends, receives)
        if terms.own:
            with torch.cuda.stream(lane.stream):
                terms.places(receive_counts)[self.rank].copy_(send.split(send_counts)[self.rank])
        lane.end(crossing)

        def join() -> torch.Tensor:
            if kept:  # Once: its events are another's afterwards.
                lane.join(crossing)
                # Until the computation waits for the exchange, nothing else may be given the memory of what is sent.
                del kept[:]
            return received

        kept = [send]
        return Transfer(join, timed=True)

    def _rows(self, rows: torch.Tensor | Sequence[torch.Tensor], counts: list[int], size: int) -> list[Rows]:
        """What goes to each other rank, or comes from it. rows: packed by rank, or a tensor a rank; of `size` bytes."""
        sizes = [n * size for n in counts]
        if isinstance(rows, torch.Tensor):  # By sums: to cut a tensor takes the host longer, at every step.
            begins = list(accumulate(sizes[:-1], initial=rows.data_ptr()))
        else:
            begins = [part.data_ptr() for part in rows]
        return [(peer, begins[peer], n) for peer, n in enumerate(sizes) if n and peer != self.rank]

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

    def _post(self, gives: Sequence[torch.Tensor], takes: Sequence[torch.Tensor], own: bool) -> list[dist.Work]:
        """Start what goes to and comes from others, by rank, over the default group; own: copy the rank's own rows too.

        Returns what is to be waited for before the rows are there.
        """
        calls = []
        for peer in range(self.ranks):
            if peer == self.rank:
                continue
            if len(gives[peer]):
                calls.append(dist.P2POp(dist.isend, gives[peer], peer))
            if len(takes[peer]):
                calls.append(dist.P2POp(dist.irecv, takes[peer], peer))
        works = dist.batch_isend_irecv(calls) if calls else []
        if own:
            takes[self.rank].copy_(gives[self.rank])
        return works

    def _between_hosts(
        self, stage: str, send: torch.Tensor, send_counts: list[int], receive_counts: list[int]
    ) -> Transfer:
        coming = self._host.exchange(stage, send, send_counts, receive_counts)
        if self._lane is None:
            return Transfer(coming.result, lambda: coming.moment)
        # Under a name of their own: the stage's seconds are those of the rows between the devices.
        lane, tally = self._lane, self._tally(f"{stage} counts")

        def finish() -> torch.Tensor:
            self.on_wait(stage)
            with lane.standstill(tally):
                rows = coming.result()
            self.on_wait(None)
            return rows

        return Transfer(finish, timed=True)

    def _tally(self, stage: str) -> Tally:
        known = self._tallies.get(stage)
        if known is None or known.exposed is not self.exposed_seconds:  # Another window has begun.
            known = self._tallies[stage] = Tally(stage, self.exposed_seconds, self.hidden_seconds)
        return known

    def _barrier(self) -> None:
        self._host.barrier()

    def _silence(self, stage: str) -> None:
        text = f"{stage}: rank {self.rank} waited in vain for the other ranks, {self._timeout:g} s"
        self.on_silence(PeerSilentError(text))


def connect(timeout: float, pace: float | None = None, windows: bool = False) -> NcclCommunicator:
    """Join the ranks that torchrun has started on this machine, a GPU each; connections are made at once.

    timeout: seconds that a collective may take. windows: ranks map memory of each other's.
    """
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    # The default group is for other libraries, as a peer's, and for the all-to-all that exchanges are compared with.
    limit = timedelta(seconds=timeout + BACKSTOP_SECONDS)
    dist.init_process_group("nccl", timeout=limit, device_id=device)
    hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    lines, peers = PeerLines.between(hosts, timeout), NcclPeers.between(hosts)
    return NcclCommunicator(device, hosts, timeout, pace, lines, peers, windows)
