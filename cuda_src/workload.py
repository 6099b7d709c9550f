"""Counted work of a view: what its operators could not do without, from the tensors themselves.

A measurement and no part of a step. Floors of time are made of these counts, so none of them depends on how a kernel
divides its work, but for the warp: 32 pixels of 8 x 4 that go through a list together, or two cells of 4 x 4 each
through its own.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from cuda_src.camera import Camera
from cuda_src.nvcc import find_nvcc
from cuda_src.operators import Bins, KernelSet, Raster, Splats

CELL = 4
"""Side of the smallest patch of pixels whose lists kernels keep apart: half a warp's."""

COUNTED = (
    "instances_forward",
    "instances_backward",
    "blended_pairs",
    "evaluations_forward",
    "evaluations_backward",
    "evaluations_blending",
    "cells_forward",
    "cells_backward",
)
"""Counts that go through every list, in the order in which back ends return them."""


@dataclass(frozen=True)
class Workload:
    """One view's work; every field is a count.

    gaussians: of the scene. visible: splats. pixels: of the image. tiles: listed ones. instances: (tile, splat) pairs
    listed.

    A pixel's end is the entry of its tile's list that stops it, or the last entry. instances_forward: entries up to
    the last of their tile's pixels' ends. instances_backward: entries up to the last that any pixel of the tile blends.
    blended_pairs: (pixel, splat) pairs blended.

    A warp evaluation is a (sub-tile, splat) pair in which alpha can come to alpha_min: the ellipse meets the rectangle
    of the sub-tile's pixel centres. evaluations_forward: those up to the last of the sub-tile's pixels' ends.
    evaluations_backward: those up to the last entry that one of its pixels blends. evaluations_blending: those that at
    least one of its pixels blends. cells_forward, cells_backward: the same of (cell, splat) pairs, cells of 4 x 4 px.
    """

    gaussians: int
    visible: int
    pixels: int
    tiles: int
    instances: int
    instances_forward: int
    instances_backward: int
    blended_pairs: int
    evaluations_forward: int
    evaluations_backward: int
    evaluations_blending: int
    cells_forward: int
    cells_backward: int

    @property
    def active_lanes(self) -> float:
        """Pixels of 32 that blend, mean over warp evaluations of the forward; 0 without any."""
        return self.blended_pairs / self.evaluations_forward if self.evaluations_forward else 0.0


def workload(
    kernels: KernelSet, gaussians: int, splats: Splats, bins: Bins, raster: Raster, camera: Camera
) -> Workload:
    """The work of a view that was composited without sub-tile masks and depth ranges, from light 1 at each pixel.

    Splats and bins have exact sizes, not those of a room. raster: what `raster_forward` made of them. Waits for the
    device. On a GPU a compiled kernel counts, whichever back end made the tensors; else the reference does, tile by
    tile, which suits small views.
    """
    on_gpu = splats.records.is_cuda and kernels.precision == "float32" and find_nvcc() is not None
    module = importlib.import_module(f"cuda_src.{'compiled' if on_gpu else 'reference'}.workload")
    counts = module.count_lists(kernels, splats, bins, raster, camera)
    return Workload(
        gaussians=gaussians,
        visible=splats.count,
        pixels=camera.width * camera.height,
        tiles=len(bins.tiles),
        instances=bins.instances,
        **dict(zip(COUNTED, counts, strict=True)),
    )
