"""Engine nccl says the same as the virtual one: its code over gloo where there is no GPU, and over NCCL on two."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cuda_src.operators import KernelSet
from strategies.distribution.communicator import Communicator, LocalCommunicator, Terms
from strategies.distribution.device_lane import Tally
from strategies.distribution.nccl import NcclCommunicator, connect
from strategies.distribution.peer_lines import PeerLines
from strategies.distribution.virtual import VirtualWorld
from strategies.registry import strategy as strategy_info
from strategies.training.config import Training
from strategies.views import ViewQueue

TIMEOUT = 30.0


def conversation(comm: Communicator) -> dict[str, torch.Tensor]:
    """One of every collective, with uneven and empty parts, on the communicator's device; answers on the host."""
    rank, ranks = comm.rank, comm.ranks
    to = [(rank + 2 * other) % 3 for other in range(ranks)]
    heard = [(other + 2 * rank) % 3 for other in range(ranks)]
    rows = torch.arange(3 * sum(to), dtype=torch.float32, device=comm.device).view(-1, 3) + 100 * rank
    pending = comm.exchange("a", rows, to, heard, padding=1)
    bits = comm.exchange("bits", rows[:, 0].to(torch.uint8), to, heard)
    many = torch.arange(ranks, device=comm.device)[:, None].expand(ranks, 2) + rank
    counts = comm.counts("b", many).wait()
    total = comm.reduce("c", torch.tensor([1.0 + rank], device=comm.device))
    parts = torch.cat(comm.gather("d", rows))
    on_host = torch.cat(comm.gather("e", torch.full((rank, 2), rank)))
    nothing = comm.exchange("f", rows[:0], [0] * ranks, [0] * ranks).wait()
    received = pending.wait()
    into = torch.full((sum(heard), 3), 7.0, device=comm.device)
    terms = Terms(own=False, after=comm.mark(), into=into)
    others = comm.exchange("g", rows, to, heard, terms=terms).wait()
    assert others.data_ptr() == into.data_ptr()
    comm.barrier()
    said = {"received": received, "bits": bits.wait(), "counts": counts, "total": total, "parts": parts}
    said |= {
        "host": on_host,
        "nothing": nothing,
        "others": others,
        "payload": comm.ledger.payload["a"],
        "metadata": comm.ledger.metadata["d"],
    }
    return {name: tensor.cpu().clone() for name, tensor in said.items()}


def gloo_rank(rank: int, ranks: int, port: int, folder: str, task: Callable[[Communicator], Any]) -> None:
    """A rank whose default group is gloo, so that the engine's own code runs on the CPU."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    comm = gloo_communicator(TIMEOUT)
    torch.save(task(comm), f"{folder}/{rank}.pt")
    comm.barrier()
    comm.close()
    dist.barrier()
    dist.destroy_process_group()


def gloo_communicator(timeout: float) -> NcclCommunicator:
    hosts = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return NcclCommunicator(torch.device("cpu"), hosts, timeout, lines=PeerLines.between(hosts, timeout))


def gpu_rank(
    rank: int,
    ranks: int,
    port: int,
    folder: str,
    task: Callable[[Communicator], Any],
    pace: float | None = None,
    windows: bool = False,
) -> None:
    """A rank on a GPU of its own, as torchrun starts it."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(ranks), "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    os.environ |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "lo")
    comm = connect(TIMEOUT, pace, windows)
    torch.save(task(comm), f"{folder}/{rank}.pt")
    comm.barrier()
    comm.close()
    dist.destroy_process_group()


def said_by(main: Callable[..., None], ranks: int, folder: Path, task: Callable[[Communicator], Any]) -> list[Any]:
    """What the task returned on every rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(main, (ranks, port, str(folder), task), nprocs=ranks)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def assert_equal_to_virtual(said: list[dict[str, torch.Tensor]]) -> None:
    expected = VirtualWorld(len(said)).run(conversation)
    for rank, own in enumerate(said):
        assert own.keys() == expected[rank].keys()
        for name, value in expected[rank].items():
            assert torch.equal(own[name], value), (rank, name)


def posted_bytes(comm: Communicator) -> dict[str, Any]:
    """What is handed to the network, by peer, beside what the ledger says."""
    posted = torch.zeros(comm.ranks, dtype=torch.int64)
    post = dist.batch_isend_irecv

    def counted(calls: list[dist.P2POp]) -> list[dist.Work]:
        for call in calls:
            if call.op is dist.isend:
                posted[call.peer] += call.tensor.numel() * call.tensor.element_size()
        return post(calls)

    dist.batch_isend_irecv = counted
    rows = torch.ones(5 * comm.ranks, 4)
    comm.exchange("posted", rows, [5] * comm.ranks, [5] * comm.ranks).wait()
    dist.batch_isend_irecv = post
    return {"posted": posted, "ledger": comm.ledger.payload["posted"][comm.rank]}


def mismatched(comm: Communicator) -> str:
    """Rank 1 sends rank 0 a row more than that expects."""
    comm.checks = True
    ones = [1] * comm.ranks
    comm.exchange("a", torch.ones(comm.ranks, 1), ones, ones).wait()
    to = [1 + (comm.rank == 1), *ones[1:]]
    try:
        comm.exchange("b", torch.ones(sum(to), 1), to, ones)
    except ValueError as error:
        return str(error)
    finally:
        comm.checks = False
    return ""


def silent(comm: Communicator) -> str:
    """The last rank does not come to the counts, for which the others have a second."""
    impatient = gloo_communicator(1.0)
    said = ""
    if comm.rank < comm.ranks - 1:
        try:
            impatient.counts("exchange_forward", torch.zeros(comm.ranks, 1)).wait()
        except TimeoutError as error:
            said = str(error)
    comm.barrier()
    impatient.close()
    return said


def tiny_scene() -> Any:
    """The scene of exactness tests, in a process that pytest has not started."""
    spec = importlib.util.spec_from_file_location("scenes_of_tests", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.tiny_scene()


def trained(comm: Communicator, scene: Any, name: str, **options: Any) -> dict[str, torch.Tensor]:
    """Losses of a few steps in float64 and this rank's Gaussians after them."""
    kernels = KernelSet("reference", precision="float64", t_stop=0.0)
    info = strategy_info(name)
    strategy = info.load()()
    context = scene.context(kernels, Training(sh_every=0, epsilon=1e-8), batch=2, comm=comm)
    strategy.setup(context, scene.source, scene.images, info.options.model_validate(options))
    queue = ViewQueue(range(len(scene.cameras)), seed=3)
    losses = torch.stack([strategy.step(queue).loss.double() for _ in range(4)])
    strategy.settle()
    ids, parameters = (
        torch.cat(parts) for parts in zip(*((s.ids, s.parameters) for s in strategy.shards()), strict=True)
    )
    return {"losses": comm.reduce("test", losses), "ids": ids, "parameters": parameters.clone()}


def grendel(comm: Communicator) -> dict[str, torch.Tensor]:
    return trained(comm, tiny_scene(), "grendel", codec="bitmap")


def everything(comm: Communicator) -> dict[str, Any]:
    """All of these on one set of processes, which take seconds to start."""
    return {task.__name__: task(comm) for task in (conversation, posted_bytes, mismatched, grendel, silent)}


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What three ranks said, the middle one with its own rows between those of the others."""
    return said_by(gloo_rank, 3, tmp_path_factory.mktemp("three"), everything)


def test_the_engine_says_what_the_virtual_one_says(three_ranks):
    assert_equal_to_virtual([said["conversation"] for said in three_ranks])


def test_grendel_over_the_engine_equals_single(three_ranks, scene):
    expected = trained(LocalCommunicator(), scene, "single")
    parts = [said["grendel"] for said in three_ranks]
    found = torch.zeros_like(expected["parameters"])
    for part in parts:
        found[part["ids"]] = part["parameters"]
        assert torch.allclose(part["losses"], expected["losses"], atol=1e-10)
    assert sum(len(part["ids"]) for part in parts) == len(found)
    assert torch.allclose(found[expected["ids"]], expected["parameters"], atol=1e-8)


def test_own_rows_stay_in_the_ledger_and_off_the_network(three_ranks):
    for rank, said in enumerate(said["posted_bytes"] for said in three_ranks):
        assert said["ledger"].tolist() == [80] * 3
        assert said["posted"].tolist() == [0 if peer == rank else 80 for peer in range(3)]


def test_with_checks_a_mismatch_is_an_error_on_every_rank_and_no_hang(three_ranks):
    sentence = "b: rank 1 sends 2 rows to rank 0, which expects 1"
    assert [said["mismatched"] for said in three_ranks] == [sentence] * 3


def test_a_rank_that_does_not_come_ends_the_wait_with_stage_and_rank(three_ranks):
    for rank in range(2):
        assert three_ranks[rank]["silent"] == f"exchange_forward: rank {rank} waited in vain for the other ranks"


def paced(comm: Communicator) -> tuple[float, dict[str, float], dict[str, float]]:
    """An exchange of 1 MB at 100 MB/s, beside 4 ms of other work."""
    comm.pace = 1e8
    start = comm.now()
    pending = comm.exchange("a", torch.zeros(2_000_000, dtype=torch.uint8), [1_000_000] * 2, [1_000_000] * 2)
    comm.rest_until(comm.now() + 0.004)
    pending.wait()
    return comm.now() - start, dict(comm.exposed_seconds), dict(comm.hidden_seconds)


def test_a_paced_exchange_takes_its_bytes_over_the_rate_and_hides_behind_work():
    for took, exposed, hidden in VirtualWorld(2).run(paced):
        assert took >= 0.01
        assert exposed["a"] + hidden["a"] >= 0.01
        assert hidden["a"] >= 0.004


def test_exchanges_of_a_paced_link_follow_one_another():
    def main(comm: Communicator) -> float:
        comm.pace = 1e8
        start = comm.now()
        both = [
            comm.exchange("a", torch.zeros(2_000_000, dtype=torch.uint8), [1_000_000] * 2, [1_000_000] * 2)
            for _ in range(2)
        ]
        for pending in both:
            pending.wait()
        return comm.now() - start

    assert all(took >= 0.02 for took in VirtualWorld(2).run(main))


def test_what_is_hidden_of_exchanges_that_follow_one_another_is_right_for_both_together():
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}
    tally = Tally("a", exposed, hidden)
    tally.add(waited=3.0, took=2.0)  # Stood still for this one and a second of the other.
    tally.add(waited=0.0, took=1.5)
    assert exposed == {"a": 3.0}
    assert hidden == {"a": pytest.approx(0.5)}


def two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.gpu
@pytest.mark.multigpu
def test_over_nccl_the_engine_says_what_the_virtual_one_says(tmp_path):
    two_gpus()
    assert_equal_to_virtual(said_by(gpu_rank, 2, tmp_path, conversation))


def large_exchanges(comm: Communicator) -> dict[str, Any]:
    """Rows of 64 MB to each rank, again and again, while memory that is given up is overwritten: what arrives must be
    what was sent. Seconds are read once, at the end."""
    wrong = 0
    for turn in range(20):
        rows = torch.full((2_000_000, 16), float(10 * turn + comm.rank), device=comm.device)
        pending = comm.exchange("a", rows, [1_000_000] * 2, [1_000_000] * 2)
        del rows
        other = torch.full((2_000_000, 16), -1.0, device=comm.device)
        other.mul_(2)
        received = pending.wait()
        expected = torch.tensor([10.0 * turn, 10.0 * turn + 1], device=comm.device).repeat_interleave(1_000_000)
        wrong += int((received != expected[:, None]).sum())
    comm.settle()
    over_link = comm.ledger.over_link()
    return {"wrong": wrong, "exposed": comm.exposed_seconds, "hidden": comm.hidden_seconds, "link": over_link}


@pytest.mark.gpu
@pytest.mark.multigpu
def test_rows_sent_live_until_they_have_arrived_and_overlap_is_measured(tmp_path):
    two_gpus()
    for rank, said in enumerate(said_by(gpu_rank, 2, tmp_path, large_exchanges)):
        assert said["wrong"] == 0
        assert said["exposed"]["a"] >= 0
        assert said["exposed"]["a"] + said["hidden"]["a"] > 0
        assert said["link"][rank].tolist() == [20 * 64_000_000] * 2


def written_exchanges(comm: Communicator) -> dict[str, Any]:
    """Rows written into the other rank's window, again and again while it is read, in sizes of which some are nothing
    and some let the window grow."""
    wrong, other = 0, 1 - comm.rank
    sizes = [(turn % 5 * 100_000 * (turn + 1), (turn + 2) % 3 * 50_000) for turn in range(20)]
    for turn, rows in enumerate(sizes):
        windows = comm.windows("inbox", 16 * max(rows))
        assert windows is not None
        into, there = (
            windows[rank].view(torch.float32)[: 4 * n].view(n, 4)
            for rank, n in ((comm.rank, rows[other]), (other, rows[comm.rank]))
        )
        sent = torch.full((rows[comm.rank], 4), float(10 * turn + comm.rank), device=comm.device)
        nothing = sent[:0]
        to, back = [0, 0], [0, 0]
        to[other], back[other] = rows[comm.rank], rows[other]
        places = [nothing, nothing]
        places[other] = into
        aims = [nothing, nothing]
        aims[other] = there
        comm.exchange("a", sent, to, back, terms=Terms(own=False, into=places, there=aims)).wait()
        wrong += int((into != 10.0 * turn + other).sum())
    comm.settle()
    written = 16 * torch.tensor([of_rank[comm.rank] for of_rank in sizes]).sum()
    return {"wrong": wrong, "written": written, "link": comm.ledger.over_link()[comm.rank].sum(), "engine": comm.engine}


@pytest.mark.gpu
@pytest.mark.multigpu
def test_ranks_write_each_others_windows(tmp_path):
    two_gpus()
    for said in said_by(partial(gpu_rank, windows=True), 2, tmp_path, written_exchanges):
        assert said["engine"] == "symmetric"
        assert said["wrong"] == 0
        assert said["written"] == said["link"]


def forked_work(comm: Communicator) -> dict[str, Any]:
    """Sums of what comes, made beside a computation that does not need it, and used behind both."""
    wrong, ours = 0, torch.zeros(2_000_000, device=comm.device)
    total = torch.zeros(1, dtype=torch.float64, device=comm.device)
    for turn in range(20):
        send = torch.full((2_000_000, 8), float(turn + comm.rank), device=comm.device)
        coming = comm.exchange("a", send, [1_000_000] * 2, [1_000_000] * 2)
        fork = comm.fork()
        ours.add_(1.0)
        with fork:
            torch.sum(coming.wait(), dim=(0, 1), keepdim=True, dtype=torch.float64, out=total[None])
        wrong += int(total != 8e6 * (2 * turn + 1)) + int((ours != turn + 1).sum())
    assert torch.cuda.current_stream(comm.device) == torch.cuda.default_stream(comm.device)
    comm.settle()
    return {"wrong": wrong, "exposed": comm.exposed_seconds["a"]}


@pytest.mark.gpu
@pytest.mark.multigpu
def test_what_needs_an_exchange_is_done_beside_what_does_not(tmp_path):
    two_gpus()
    for said in said_by(gpu_rank, 2, tmp_path, forked_work):
        assert said["wrong"] == 0
        assert said["exposed"] >= 0


def paced_on_gpu(comm: Communicator) -> float:
    rows = torch.zeros((2, 100_000_000), dtype=torch.uint8, device=comm.device)
    for stage in ("connects", "a"):  # The first exchange keeps the host busy, and so has less left to wait for.
        comm.exchange(stage, rows, [1, 1], [1, 1]).wait()
        torch.cuda.synchronize(comm.device)
    comm.settle()
    return comm.exposed_seconds["a"]


@pytest.mark.gpu
@pytest.mark.multigpu
def test_a_paced_exchange_between_gpus_takes_its_bytes_over_the_rate(tmp_path):
    two_gpus()
    for seconds in said_by(partial(gpu_rank, pace=5e9), 2, tmp_path, paced_on_gpu):
        assert seconds == pytest.approx(0.02, rel=0.15)


@pytest.mark.gpu
def test_virtual_ranks_on_a_gpu_have_the_bytes_and_answers_of_those_on_the_cpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    expected = VirtualWorld(3).run(conversation)
    world = VirtualWorld(3)
    for own, other in zip(world.run(conversation, "cuda"), expected, strict=True):
        for name, value in other.items():
            assert torch.equal(own[name], value), name
    assert all(clock > 0 for clock in world.clocks)
