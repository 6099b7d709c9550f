"""The package gsplat on two GPUs, by its own exchange, equals the package on one; and NCCL moves what is booked."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.nccl import connect
from strategies.gsplat_peer.info import GsplatOptions
from strategies.gsplat_peer.strategy import GsplatPeer
from strategies.training.config import Training
from strategies.views import ViewQueue

COUNT, STEPS = 4000, 6


def alike_scene() -> Any:
    """The scene of all exactness tests with views of one size, in a process that pytest has not started."""
    file = Path(__file__).parents[1] / "conftest.py"
    spec = importlib.util.spec_from_file_location("scenes_of_tests", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    scene = module.tiny_scene(count=COUNT)
    size = {"width": 200, "height": 120, "fx": 160.0, "fy": 160.0, "cx": 100.0, "cy": 60.0}
    scene.cameras[:] = [replace(camera, **size) for camera in scene.cameras]
    generator = torch.Generator().manual_seed(1)
    for view in range(len(scene.cameras)):
        scene.images.images[view] = torch.randint(0, 256, (120, 200, 3), dtype=torch.uint8, generator=generator)
    return scene


def rank_main(rank: int, port: int, folder: str, options: dict[str, Any], batch: int, pace: float | None) -> None:
    """Each step starts from the parameters of a peer alone on this rank's GPU; with beta1 = 0 the first moment is the
    gradient itself. Leaves this rank's greatest errors, relative to each group's greatest gradient."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0"}
    os.environ |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "lo")
    comm = connect(60.0, pace)
    scene = alike_scene()
    training = Training(convention="gsplat153", sh_every=0, beta1=0.0, background=(0.1, 0.2, 0.3))
    kernels = KernelSet("compiled", comm.device, CONVENTIONS["gsplat153"])

    def peer(of: Communicator, world: World, source: Any) -> GsplatPeer:
        strategy = GsplatPeer()
        context = replace(scene.context(kernels, training, batch), world=world, comm=of)
        strategy.setup(context, source, scene.images, GsplatOptions(**options))
        return strategy

    shared = peer(comm, World(rank, 2, (comm.device,), 2), scene.source)
    # Alone on one GPU Gaussians lie as they come from two, so that those of equal depth are blended in the same order.
    in_order = torch.cat(comm.gather("test", shared.gaussians.ids.cpu()))
    alone = peer(
        LocalCommunicator(comm.device),
        World.alone(comm.device),
        replace(scene.source, parameters=scene.source.parameters[in_order]),
    )
    own = in_order.argsort()[shared.gaussians.ids.cpu()].to(comm.device)
    orders = [ViewQueue(range(len(scene.cameras)), seed=3) for _ in range(2)]
    gradient_error = loss_error = visible = 0.0
    for _ in range(STEPS):
        # The oracles of the ranks go apart with the order of their atomic sums: both are rank 0's, step by step.
        for table in (alone.gaussians.parameters, alone.gaussians.moment1, alone.gaussians.moment2):
            for tensor in table.values():
                dist.broadcast(tensor.data, 0)
        for name, tensor in shared.gaussians.parameters.items():
            tensor.data.copy_(alone.gaussians.parameters[name].data[own])
        expected = alone.step(orders[0])
        report = shared.step(orders[1])
        visible += report.visible_gaussians
        loss = comm.reduce("test", report.loss.double().cpu())
        loss_error = max(loss_error, float((loss / expected.loss.double().cpu() - 1).abs()))
        for name, moment in shared.gaussians.moment1.items():
            truth = alone.gaussians.moment1[name]
            error = float((moment - truth[own]).abs().max())
            gradient_error = max(gradient_error, error / float(truth.abs().max()))
    image, truth = shared.render(scene.cameras[0]), alone.render(scene.cameras[0])
    comm.settle()
    payload = {stage: table[rank].clone() for stage, table in comm.ledger.payload.items() if stage != "test"}
    said = {"gradient": gradient_error, "loss": loss_error, "visible": visible, "payload": payload}
    said |= {"exposed": comm.exposed_seconds, "hidden": comm.hidden_seconds, "owned": len(own)}
    # Adam's steps differ where rounding turns a gradient around, so images are alike and not the same.
    said["image"] = 0.0 if image is None else float((image - truth).abs().mean())
    torch.save(said, f"{folder}/{rank}.pt")
    comm.barrier()
    comm.close()
    dist.destroy_process_group()


def said_by_ranks(folder: Path, *arguments: Any) -> list[dict[str, Any]]:
    pytest.importorskip("gsplat")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (port, str(folder), *arguments), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.gpu
@pytest.mark.multigpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("batch", [2, 4])
def test_losses_and_gradients_on_two_gpus_equal_those_on_one(tmp_path, packed, batch):
    said = said_by_ranks(tmp_path, {"packed": packed}, batch, None)
    assert sum(one["owned"] for one in said) == COUNT
    for one in said:
        assert one["gradient"] <= 1e-4
        assert one["loss"] <= 1e-5
        assert one["image"] <= 1e-3
        assert all(seconds > 0 for seconds in one["exposed"].values())
        assert not any(one["hidden"].values())
    calls = STEPS * batch // 2
    for rank, one in enumerate(said):
        forward, backward = one["payload"]["exchange_forward"], one["payload"]["exchange_backward"]
        if packed:
            # Each rank's visible pairs, those of the image after training aside.
            assert 0 <= int(forward.sum()) - 48 * int(one["visible"]) <= 2 * 48 * one["owned"]
        else:
            assert forward.tolist() == [48 * one["owned"] * (calls + 1)] * 2
            assert backward.tolist() == [40 * other["owned"] * calls for other in said]
        assert int(backward[rank]) > 0


@pytest.mark.gpu
@pytest.mark.multigpu
def test_its_exchange_is_held_to_the_rate_of_a_paced_link(tmp_path):
    rate = 1e6
    for rank, one in enumerate(said_by_ranks(tmp_path, {"packed": False}, 2, rate)):
        for stage, table in one["payload"].items():
            assert one["exposed"][stage] >= 0.9 * int(table[1 - rank]) / rate
