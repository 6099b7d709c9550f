"""Strategies with compiled kernels on two GPUs equal `single` on one; also where two ranks share a GPU."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cuda_src import layout
from cuda_src.compiled.memory import tensor_at
from cuda_src.conventions import T_STOP
from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.distribution.nccl import NcclCommunicator, connect
from strategies.distribution.nccl_peers import Rows
from strategies.distribution.peer_lines import PeerLines
from strategies.registry import strategy as strategy_info
from strategies.training.config import Training
from strategies.views import ViewQueue

pytestmark = pytest.mark.gpu

STEPS = 20
COUNT = 4000
FLOAT = 4
"""Bytes."""
EXACT = Training(sh_every=0, beta1=0.0)


def tiny_scene() -> Any:
    """The scene that all exactness tests use, built in a process that pytest has not started."""
    spec = importlib.util.spec_from_file_location("scenes_of_tests", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.tiny_scene(count=COUNT)


def by_id(ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows [n, k] placed at their ids, [COUNT, k]; zeros elsewhere."""
    table = torch.zeros((COUNT, rows.shape[1]), device=rows.device)
    table[ids.to(rows.device)] = rows
    return table


class HostPeers:
    """In the place of `NcclPeers`, which want a GPU each: rows cross through the hosts."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def exchange(self, stream: int, sends: Iterable[Rows], receives: Sequence[Rows]) -> None:
        queue = torch.cuda.ExternalStream(stream)
        queue.synchronize()
        coming = [torch.empty(size // FLOAT) for _, _, size in receives]
        works = [dist.isend(floats_at(at, size).cpu(), peer, group=self._group) for peer, at, size in sends]
        works += [dist.irecv(rows, peer, group=self._group) for rows, (peer, *_) in zip(coming, receives, strict=True)]
        for work in works:
            work.wait()
        with torch.cuda.stream(queue):
            for rows, (_, address, size) in zip(coming, receives, strict=True):
                floats_at(address, size).copy_(rows)
        queue.synchronize()

    def close(self) -> None:
        pass


def floats_at(address: int, size: int) -> torch.Tensor:
    """Rows of so many bytes, on the current GPU."""
    assert size % FLOAT == 0
    return tensor_at(address, (size // FLOAT,), torch.device("cuda"))


def share_a_gpu(timeout: float) -> NcclCommunicator:
    """`connect` with windows for ranks that are all on the first GPU."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    hosts, rows = (dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout)) for _ in range(2))
    peers: Any = HostPeers(rows)
    return NcclCommunicator(device, hosts, timeout, None, PeerLines.between(hosts, timeout), peers, windows=True)


def rank_main(
    rank: int,
    port: int,
    folder: str,
    name: str,
    options: dict[str, Any],
    batch: int,
    t_stop: float,
    training: Training,
    windows: bool,
    gpus: int,
) -> None:
    """Each step starts from the parameters of a `single` beside it; with beta1 = 0 Adam's first moment is the gradient
    itself. Leaves this rank's greatest errors, relative to each group's greatest gradient."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    os.environ |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "lo")
    comm = connect(60.0, windows=windows) if gpus > 1 else share_a_gpu(60.0)
    scene = tiny_scene()
    kernels = KernelSet("compiled", device=comm.device, t_stop=t_stop)
    alone = scene.context(kernels, training, batch)
    alone = replace(alone, world=World.alone(comm.device), comm=LocalCommunicator(comm.device))
    together = scene.context(kernels, training, batch, comm)
    info = strategy_info(name)
    single, strategy = strategy_info("single").load()(), info.load()()
    single.setup(alone, scene.source, scene.images, strategy_info("single").options())
    strategy.setup(together, scene.source, scene.images, info.options.model_validate(options))
    orders = [ViewQueue(range(len(scene.cameras)), seed=3) for _ in range(2)]
    gradient_error = image_error = loss_error = 0.0
    for step in range(STEPS):
        own, oracle = strategy.gaussians, single.gaussians
        # The oracles of the ranks go apart with the order of their atomic sums: both are rank 0's, step by step.
        for table in oracle.tables:
            agreed = table.clone()
            dist.broadcast(agreed, 0)
            table.copy_(agreed)
        own.parameters.copy_(by_id(oracle.ids, oracle.parameters)[own.ids.to(comm.device)])
        image, truth = strategy.render(scene.cameras[step % 4]), single.render(scene.cameras[step % 4])
        if image is not None:
            image_error = max(image_error, float((image - truth).abs().max()))
        expected = single.step(orders[0]).loss.double().cpu()
        loss = comm.reduce("test", strategy.step(orders[1]).loss.double().cpu())
        loss_error = max(loss_error, float((loss / expected - 1).abs()))
        single.settle()
        strategy.settle()
        own, oracle = strategy.gaussians, single.gaussians
        gradients = by_id(oracle.ids, oracle.moment1)[own.ids.to(comm.device)]
        for group in layout.PARAMETER_GROUPS.values():
            largest = float(oracle.moment1[:, group].abs().max())
            error = float((own.moment1[:, group] - gradients[:, group]).abs().max())
            gradient_error = max(gradient_error, error / largest)
    comm.settle()
    said = {"gradient": gradient_error, "image": image_error, "loss": loss_error, "exposed": comm.exposed_seconds}
    torch.save(said | {"owned": len(strategy.gaussians.ids)}, f"{folder}/{rank}.pt")
    comm.barrier()
    comm.close()
    dist.destroy_process_group()


@pytest.mark.multigpu
@pytest.mark.parametrize(
    ("name", "options", "batch"),
    [
        ("grendel", {}, 1),
        ("grendel", {}, 2),
        ("grendel", {"balance": "off"}, 3),
        ("grendel", {"unit": "row", "balance": "measured", "codec": "bitmap"}, 2),
        ("grendel", {"balance": "off", "codec": "index", "ownership": "contiguous", "record": "64"}, 1),
        ("grendel", {"unit": "image", "ownership": "kdtree"}, 2),
        ("grendel", {"ownership": "random", "redistribute": "morton_blocks", "redistribute_images": 6}, 1),
        ("bytesplat", {"raster": "separate", "codec": "bitmap"}, 1),
        ("bytesplat", {}, 2),
    ],
)
def test_gradients_images_and_losses_equal_single_from_the_same_parameters(tmp_path, name, options, batch):
    check(tmp_path, name, options, batch)


@pytest.mark.multigpu
@pytest.mark.parametrize(("options", "batch"), [({}, 1), ({}, 2), ({"balance": "off"}, 3)])
def test_ranks_that_write_each_others_memory_equal_single(tmp_path, options, batch):
    check(tmp_path, "grendel", options, batch, windows=True)


@pytest.mark.parametrize(
    ("options", "batch", "training"),
    [
        ({}, 1, EXACT),
        ({}, 2, EXACT),
        ({"balance": "off"}, 3, EXACT),
        ({"ownership": "random", "redistribute": "morton_blocks", "redistribute_images": 6}, 1, EXACT),
        ({}, 2, EXACT.model_copy(update={"occlusion": "history"})),
    ],
)
def test_ranks_that_share_a_gpu_write_each_others_memory_and_equal_single(tmp_path, options, batch, training):
    check(tmp_path, "grendel", options, batch, training=training, windows=True, gpus=1)


@pytest.mark.multigpu
@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_left_out_as_hidden_is_what_single_leaves_out(tmp_path, batch):
    check(tmp_path, "grendel", {}, batch, training=EXACT.model_copy(update={"occlusion": "history"}))


@pytest.mark.multigpu
@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 1),
        ({"boxes_per_rank": 4, "compose": "owner"}, 2),
        ({"order": "depth", "repartition_images": 6, "repartition_imbalance": 0.0}, 1),
        ({"regions": "whole", "compose": "owner", "order": "depth"}, 1),
    ],
)
def test_splaxel_equals_single_from_the_same_parameters_when_nothing_stops(tmp_path, options, batch):
    check(tmp_path, "splaxel", {"boundary": "exact", "saturation": "off", **options}, batch, t_stop=0.0)


def check(
    tmp_path: Path,
    name: str,
    options: dict[str, Any],
    batch: int,
    t_stop: float = T_STOP,
    training: Training = EXACT,
    windows: bool = False,
    gpus: int = 2,
) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (port, str(tmp_path), name, options, batch, t_stop, training, windows, gpus), nprocs=2)
    said = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for one in said:
        assert one["gradient"] <= 1e-5
        assert one["image"] <= 1e-5
        assert one["loss"] <= 1e-5
        assert all(seconds >= 0 for seconds in one["exposed"].values())
    assert sum(one["owned"] for one in said) == COUNT
