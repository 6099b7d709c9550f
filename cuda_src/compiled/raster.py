"""raster_forward and raster_backward: what the kernels of the same names are given."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch

from cuda_src import layout
from cuda_src.camera import Camera
from cuda_src.compiled.bindings import ReplayedLaunch, address, count, library
from cuda_src.compiled.lent import laid_out, lent, loss_bytes
from cuda_src.compiled.seen import three_words
from cuda_src.compiled.view import view_of
from cuda_src.operators import Bins, KernelSet, Raster, Splats
from cuda_src.workspace import Workspace


@dataclass(frozen=True)
class SegmentedRaster(Raster):
    """A Raster, and what its backward needs of tile lists that were composited in segments.

    segments: bytes, laid out by `segments_in` of segments.cu: the segments, and what each left at its pixels.
    by_splat: [V, GRADIENT_STRIDE], memory that lies before them for the gradients of the splats. Both are lent.
    """

    segments: torch.Tensor
    by_splat: torch.Tensor


def raster_forward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    camera: Camera,
    workspace: Workspace,
    start_transmittance: torch.Tensor | None,
    subtiles: torch.Tensor | None,
    depth_range: torch.Tensor | None,
    background: torch.Tensor | None = None,
) -> Raster:
    """See `cuda_src.operators.raster_forward`."""
    records = aligned_records(splats.records, workspace)
    subtiles = None if subtiles is None else subtiles.contiguous()
    start, ranges = as_real(start_transmittance), as_real(depth_range)
    behind, stride = background_map(background)
    view = view_of(kernels, camera)
    tiles, instances = len(bins.tiles), bins.instances
    given = (
        address(bins.tiles), tiles, address(bins.starts), address(bins.splat), instances, records.data_ptr(),
        splats.count, address(start), address(subtiles), address(ranges), address(behind), stride,
    )  # fmt: skip

    def prepared() -> tuple[SegmentedRaster, ReplayedLaunch]:
        pictures = _pictures(camera, workspace)
        # The kernel writes listed tiles alone.
        cleared = _bytes_of(pictures) if tiles < camera.tiles else 0
        own = splats.count * layout.GRADIENT_STRIDE * records.element_size()
        most = max(own, loss_bytes(camera.height, camera.width))  # Which comes first, and must not reach the segments.
        by_splat, segments = lent(workspace, most, segment_bytes(tiles, instances))
        by_splat = by_splat[:own].view(torch.float32).view(splats.count, layout.GRADIENT_STRIDE)
        launch = ReplayedLaunch(
            "raster_forward", records.device, ctypes.byref(view), bins.tiles, count(tiles), bins.starts, bins.splat,
            count(instances), in_words(records), start, subtiles, ranges, behind, stride, segments, count(cleared),
            *pictures,
        )  # fmt: skip
        return SegmentedRaster(*pictures, segments=segments, by_splat=by_splat), launch

    raster, launch = workspace.kept(("raster_forward", view, *given), prepared)
    launch()
    return raster


_Pictures = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _pictures(camera: Camera, workspace: Workspace) -> _Pictures:
    """Memory of the fields of a Raster, in their order and one behind another, so that they are cleared at once."""
    size, real = (camera.height, camera.width), torch.float32
    kinds = ((*size, 3), real), (size, real), (size, real), (size, torch.uint8), (size, torch.int32), (size, real)
    parts = laid_out(workspace, "raster.pictures", *(math.prod(shape) * kind.itemsize for shape, kind in kinds))
    colour, transmittance, depth, stopped, last, stop_depth = (
        part.view(kind).view(shape) for part, (shape, kind) in zip(parts, kinds, strict=True)
    )
    return colour, transmittance, depth, stopped, last, stop_depth


def _bytes_of(pictures: _Pictures) -> int:
    """From the beginning of the first to the end of the last."""
    first, last = pictures[0], pictures[-1]
    return last.data_ptr() + last.nbytes - first.data_ptr()


def raster_backward(
    kernels: KernelSet,
    splats: Splats,
    bins: Bins,
    raster: Raster,
    camera: Camera,
    grad_colour: torch.Tensor,
    workspace: Workspace,
    background: torch.Tensor | None,
    grad_transmittance: torch.Tensor | None,
    grad_depth: torch.Tensor | None,
    start_transmittance: torch.Tensor | None,
    depth_range: torch.Tensor | None,
) -> torch.Tensor:
    """See `cuda_src.operators.raster_backward`; rows of the result lie GRADIENT_STRIDE apart.

    Sums over tiles are atomic: their order, and so the last bit, varies. The forward's start needs no second look:
    light is followed back from what it left.
    """
    if not isinstance(raster, SegmentedRaster):
        raise ValueError(f"compiled raster_backward needs the raster of its own raster_forward, got a {type(raster)}")
    records = aligned_records(splats.records, workspace)
    transmittance, last, ranges = raster.transmittance.contiguous(), raster.last.contiguous(), as_real(depth_range)
    behind, stride = background_map(background)
    by_colour, by_transmittance, by_depth = (as_real(g) for g in (grad_colour, grad_transmittance, grad_depth))
    view = view_of(kernels, camera)
    tiles, instances = len(bins.tiles), bins.instances
    given = (
        tiles, address(bins.splat), instances, records.data_ptr(), splats.count, address(raster.segments),
        address(transmittance), address(last), address(ranges), address(by_colour), address(behind), stride,
        address(by_transmittance), address(by_depth),
    )  # fmt: skip

    def prepared() -> tuple[torch.Tensor, ReplayedLaunch]:
        gradients = raster.by_splat
        if len(gradients) != splats.count or not workspace.holds(gradients):  # The forward had another workspace.
            gradients = workspace.take("raster_backward.gradients", (splats.count, layout.GRADIENT_STRIDE))
        launch = ReplayedLaunch(
            "raster_backward", records.device, ctypes.byref(view), count(tiles), bins.splat, count(instances),
            in_words(records), count(splats.count), raster.segments, transmittance, last, ranges, by_colour, behind,
            stride, by_transmittance, by_depth, gradients,
        )  # fmt: skip
        return gradients[:, : layout.GRADIENT], launch

    gradients, launch = workspace.kept(("raster_backward", view, *given), prepared)
    launch()
    return gradients


def segment_bytes(tiles: int, instances: int) -> int:
    """Bytes of a raster's segments for that many listed tiles and instances."""
    size = ctypes.c_int64(0)
    library().segment_bytes(count(tiles), count(instances), ctypes.byref(size))
    return size.value


def aligned_records(records: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """Records [V, RECORD] whose rows lie RECORD_STRIDE apart from a 16-byte address on, as raster kernels read them.

    What `project` leaves already does. Others (of a user's own, or just received) are copied into the workspace.
    """
    return three_words(records, "raster.records", workspace)


def in_words(records: torch.Tensor) -> ctypes.c_void_p:
    """The address of aligned records."""
    return ctypes.c_void_p(records.data_ptr())


def background_map(background: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """The background as kernels read it, and the floats from one pixel's to the next: 0 for one colour."""
    return as_real(background), 3 if background is not None and background.dim() == 3 else 0


def as_real(values: torch.Tensor | None) -> torch.Tensor | None:
    """As the kernels read it: float32, contiguous; a copy only where it is not."""
    if values is None or (values.dtype == torch.float32 and values.is_contiguous()):
        return values
    return values.detach().to(torch.float32).contiguous()
