"""The oracle: every operator in plain PyTorch, float32 or float64, on any device, written to be read.

The differentiable core of each is ordinary tensor code; the backward operators differentiate it with autograd, so
gradients are right when values are. Results are fresh tensors: this back end leaves the caller's workspace alone.
"""

from cuda_src.reference.adam import adam_rows
from cuda_src.reference.binning import bin_splats
from cuda_src.reference.bounds import bound_groups, groups_seen, widen_groups
from cuda_src.reference.exchange import (
    add_to_owners,
    keep_records,
    pack_gradients,
    pack_records,
    route_splats,
    sum_gradients,
    take_flags,
    unpack_records,
)
from cuda_src.reference.fused import raster_fused
from cuda_src.reference.loss import l1_ssim
from cuda_src.reference.packing import pack_rows, unpack_rows
from cuda_src.reference.projection import project, project_backward
from cuda_src.reference.raster import raster_backward, raster_forward
from cuda_src.reference.statistics import densification_statistics

__all__ = [
    "adam_rows",
    "add_to_owners",
    "bin_splats",
    "bound_groups",
    "densification_statistics",
    "groups_seen",
    "keep_records",
    "l1_ssim",
    "pack_gradients",
    "pack_records",
    "pack_rows",
    "project",
    "project_backward",
    "raster_backward",
    "raster_forward",
    "raster_fused",
    "route_splats",
    "sum_gradients",
    "take_flags",
    "unpack_records",
    "unpack_rows",
    "widen_groups",
]
