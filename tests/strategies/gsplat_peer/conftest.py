"""A stand-in of the package gsplat, for machines without it or without GPUs.

It has gsplat's signatures, shapes and types, calls its own functions by gsplat's names as gsplat does, and computes
with `reference` under gsplat's convention. Ranks are those of the virtual engine, one a thread. As version 1.5.3 does,
it takes the images of packed rows before these are exchanged, so that its tile lists are wrong without a repair.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.layout import GRADIENT
from cuda_src.operators import KernelSet, Splats, bin_splats, project, project_backward, raster_backward, raster_forward
from cuda_src.workspace import Workspace

here = threading.local()
"""Of the rank that runs in this thread. `comm`: in the place of torch.distributed's default group. `sent`: bytes to
each rank so far, as the network would count them."""


class Projection(torch.autograd.Function):
    """Rows [V] and records [V, 11] of what one camera sees of a table [N, 59]."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, kernels: KernelSet, camera: Camera, degree: int) -> Any:
        work = Workspace(table.device)
        splats = project(kernels, table.detach(), torch.arange(len(table)), camera, degree, work)
        ctx.save_for_backward(table)
        ctx.made = kernels, splats, camera, degree, work
        rows = splats.rows.clone()
        ctx.mark_non_differentiable(rows)
        return rows, splats.records.clone()

    @staticmethod
    def backward(ctx: Any, _: Any, gradients: torch.Tensor) -> Any:
        (table,), (kernels, splats, camera, degree, work) = ctx.saved_tensors, ctx.made
        own = gradients[:, :GRADIENT].contiguous()
        by_row = project_backward(kernels, table, splats, camera, degree, own, work)
        total = torch.zeros_like(table)
        total[splats.rows] = by_row.to(total.dtype)
        return total, None, None, None


class Raster(torch.autograd.Function):
    """Colour [H, W, 3], transmittance [H, W] and number of tile instances of records [V, 11]."""

    @staticmethod
    def forward(ctx: Any, records: torch.Tensor, kernels: KernelSet, camera: Camera) -> Any:
        work, numbers = Workspace(records.device), torch.arange(len(records))
        splats = Splats(numbers, numbers, records.detach().contiguous())
        bins = bin_splats(kernels, splats, camera, work)
        raster = raster_forward(kernels, splats, bins, camera, work)
        ctx.made = kernels, splats, bins, raster, camera, work
        return raster.colour.clone(), raster.transmittance.clone(), torch.tensor(len(bins.splat))

    @staticmethod
    def backward(ctx: Any, by_colour: torch.Tensor, by_transmittance: torch.Tensor, _: Any) -> Any:
        kernels, splats, bins, raster, camera, work = ctx.made
        gradients = raster_backward(
            kernels,
            splats,
            bins,
            raster,
            camera,
            by_colour.contiguous(),
            work,
            grad_transmittance=by_transmittance.contiguous(),
        )
        total = torch.zeros_like(splats.records)
        total[:, :GRADIENT] = gradients
        return total, None, None


class AlltoAll(torch.autograd.Function):
    """Rows [sum(sent), k] to all ranks and from them; gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], came: list[int]) -> torch.Tensor:
        ctx.counts = sent, came
        return over_the_wire(rows, sent, came)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> Any:
        sent, came = ctx.counts
        return over_the_wire(gradients.contiguous(), came, sent), None, None


def over_the_wire(rows: torch.Tensor, sent: list[int], came: list[int]) -> torch.Tensor:
    here.sent += torch.tensor(sent) * rows[:1].numel() * rows.element_size()
    with here.comm.off_the_record():
        return here.comm.exchange("stand-in", rows, sent, came).wait()


def all_gather_int32(world_size: int, value: int, device: torch.device | None = None) -> list[int]:
    mine = torch.tensor([value] * world_size, dtype=torch.int32)
    return over_the_wire(mine, [1] * world_size, [1] * world_size).tolist()


def all_gather_tensor_list(world_size: int, tensor_list: list[torch.Tensor]) -> list[torch.Tensor]:
    count = len(tensor_list[0])
    everyone, rows = [count] * world_size, torch.cat([t.reshape(count, -1) for t in tensor_list], dim=-1)
    gathered = over_the_wire(rows.repeat(world_size, 1), everyone, everyone)
    parts = gathered.split([t.numel() // count for t in tensor_list], dim=-1)
    return [part.reshape(-1, *t.shape[1:]) for part, t in zip(parts, tensor_list, strict=True)]


def all_to_all_int32(world_size: int, values: list[torch.Tensor], device: Any = None) -> list[torch.Tensor]:
    return list(over_the_wire(torch.stack(values), [1] * world_size, [1] * world_size).unbind())


def all_to_all_tensor_list(
    world_size: int, tensor_list: list[torch.Tensor], splits: list[Any], output_splits: list[Any]
) -> list[torch.Tensor]:
    rows = torch.cat([t.reshape(len(t), -1) for t in tensor_list], dim=-1)
    widths = [t.numel() // len(t) for t in tensor_list]
    received = AlltoAll.apply(rows, [int(n) for n in splits], [int(n) for n in output_splits])
    return [part.view(-1, *t.shape[1:]) for part, t in zip(received.split(widths, dim=-1), tensor_list, strict=True)]


def isect_tiles(
    means2d: torch.Tensor,
    radii: torch.Tensor,
    *,
    packed: bool,
    n_images: int,
    image_ids: torch.Tensor | None,
    gaussian_ids: torch.Tensor | None,
) -> torch.Tensor:
    """Rows of the one image; gsplat's kernel reads as many image ids as there are rows."""
    assert n_images == 1
    if not packed:
        return (radii > 0).all(dim=-1)[0].nonzero()[:, 0]
    if len(image_ids) != len(means2d) or not (image_ids == 0).all():
        raise IndexError("an illegal memory access")
    assert len(gaussian_ids) == len(means2d)
    return torch.arange(len(means2d))


def rasterization(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    *,
    near_plane: float,
    far_plane: float,
    eps2d: float,
    sh_degree: int,
    packed: bool,
    tile_size: int,
    backgrounds: torch.Tensor | None,
    rasterize_mode: str,
    absgrad: bool,
    distributed: bool,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """One image, as gsplat's function of that name gives it; a rank's own, of the Gaussians of all."""
    count, dtype = len(means), means.dtype
    assert (tile_size, rasterize_mode, absgrad) == (16, "classic", False)
    assert (colors.shape, opacities.shape) == ((count, 16, 3), (count,))
    assert (viewmats.shape, Ks.shape) == ((1, 4, 4), (1, 3, 3))
    assert all(t.is_contiguous() for t in (means, quats, scales, opacities, colors))
    assert backgrounds is None or not packed  # Refused by version 1.5.3.
    convention = replace(CONVENTIONS["gsplat153"], near=near_plane, dilation=eps2d)
    kernels = KernelSet("reference", precision=str(dtype).removeprefix("torch."), convention=convention)
    table = torch.cat([means, scales.log(), quats, torch.logit(opacities)[:, None], colors.flatten(1)], dim=1)
    ranks, own = (here.comm.ranks, here.comm.rank) if distributed else (1, 0)
    counts = all_gather_int32(ranks, count, device=means.device) if distributed else [count]
    if distributed:
        viewmats, Ks = all_gather_tensor_list(ranks, [viewmats, Ks])
    cameras = [
        Camera(width, height, *K[[0, 1, 0, 1], [0, 1, 2, 2]].tolist(), pose.double().numpy(), far_plane)
        for pose, K in zip(viewmats, Ks, strict=True)
    ]
    seen = [Projection.apply(table, kernels, camera, sh_degree) for camera in cameras]
    camera_ids = torch.cat([torch.full_like(rows, c) for c, (rows, _) in enumerate(seen)])
    gaussian_ids = torch.cat([rows for rows, _ in seen])
    records = torch.cat([of_camera for _, of_camera in seen])
    if not packed:
        everywhere = torch.zeros(ranks * count, records.shape[1], dtype=dtype)
        records = everywhere.index_copy(0, camera_ids * count + gaussian_ids, records)
    radii = records.detach()[:, 10:].to(torch.int32).expand(-1, 2).contiguous()
    meta: dict[str, Any] = {"camera_ids": camera_ids, "gaussian_ids": gaussian_ids, "radii": radii}
    if not packed:
        meta = {"camera_ids": None, "gaussian_ids": None, "radii": radii.view(ranks, count, 2)}
    image_ids = camera_ids if packed else None
    if distributed:
        sent = list(camera_ids.bincount(minlength=ranks).unbind()) if packed else [count] * ranks
        came = all_to_all_int32(ranks, sent, device=means.device) if packed else counts
        (radii,) = all_to_all_tensor_list(ranks, [radii], splits=sent, output_splits=came)
        pieces = list(records[:, :10].split([2, 3, 1, 3, 1], dim=-1))
        pieces = all_to_all_tensor_list(ranks, pieces, sent, output_splits=came)
        records = torch.cat([*pieces, radii[:, :1].to(dtype)], dim=-1)
        if packed:
            offset = sum(counts[:own])
            named = [torch.zeros_like(camera_ids), gaussian_ids + offset]
            camera_ids, gaussian_ids = all_to_all_tensor_list(ranks, named, sent, output_splits=came)
    rows = isect_tiles(
        records[:, :2],
        radii if packed else radii[None],
        packed=packed,
        n_images=1,
        image_ids=image_ids,
        gaussian_ids=gaussian_ids if packed else None,
    )
    colour, light, instances = Raster.apply(records[rows], kernels, cameras[own])
    image = colour if backgrounds is None else colour + light[..., None] * backgrounds[0]
    return image[None], (1 - light)[None, ..., None], meta | {"flatten_ids": torch.empty(int(instances))}


class SelectiveAdam(torch.optim.Adam):
    """Adam without bias correction on the rows that a mask names, as gsplat's."""

    def __init__(self, params: Any, eps: float, betas: tuple[float, float]):
        super().__init__(params=params, eps=eps, betas=betas)

    @torch.no_grad()
    def step(self, visibility: torch.Tensor) -> None:  # type: ignore[override]
        assert visibility.dtype == torch.bool
        for group in self.param_groups:
            (tensor,), (beta1, beta2) = group["params"], group["betas"]
            state = self.state[tensor]
            first, second, gradient = state["exp_avg"], state["exp_avg_sq"], tensor.grad[visibility]
            first[visibility] = beta1 * first[visibility] + (1 - beta1) * gradient
            second[visibility] = beta2 * second[visibility] + (1 - beta2) * gradient**2
            tensor[visibility] -= group["lr"] * first[visibility] / (second[visibility].sqrt() + group["eps"])


@pytest.fixture
def stand_in(monkeypatch):
    """The package gsplat, made of the two parts that the strategy uses. `here`: what a rank's thread sets."""
    module = SimpleNamespace(rasterization=rasterization, SelectiveAdam=SelectiveAdam, here=here)
    monkeypatch.setitem(sys.modules, "gsplat", module)
    return module
