"""Engine gloo says the same as the virtual one."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from strategies.distribution.communicator import Communicator, Terms
from strategies.distribution.gloo import GlooCommunicator
from strategies.distribution.virtual import VirtualWorld


def conversation(comm: Communicator) -> dict[str, torch.Tensor]:
    """One of every collective, with uneven and empty parts."""
    rank = comm.rank
    rows = torch.arange(rank + 1, dtype=torch.float32)[:, None] + 10 * rank
    send = [rank + 1, 0] if rank == 0 else [1, rank]
    heard = [1, 1] if rank == 0 else [0, 1]
    pending = comm.exchange("a", rows, send, heard)
    counts = comm.counts("b", torch.tensor([[rank, 1], [rank, 2]])).wait()
    total = comm.reduce("c", torch.tensor([1.0 + rank]))
    parts = torch.cat(comm.gather("d", rows))
    received = pending.wait()
    into = torch.full((sum(heard), 1), 7.0)
    others = comm.exchange("e", rows, send, heard, terms=Terms(own=False, into=into)).wait()
    assert others is into
    comm.barrier()
    return {
        "received": received,
        "others": others,
        "counts": counts,
        "total": total,
        "parts": parts,
        "payload": comm.ledger.payload["a"],
        "metadata": comm.ledger.metadata["d"],
    }


def gloo_rank(rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    comm = GlooCommunicator()
    said = conversation(comm)
    assert set(comm.exposed_seconds) == {"a", "b", "c", "d", "e"}
    assert all(s >= 0 for s in (*comm.exposed_seconds.values(), *comm.hidden_seconds.values()))
    torch.save(said, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_gloo_says_what_the_virtual_engine_says(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(gloo_rank, (port, str(tmp_path)), nprocs=2)
    expected = VirtualWorld(2).run(conversation)
    for rank in range(2):
        said = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in expected[rank].items():
            assert torch.equal(said[name], value), name
