"""CUDA C++: the back end that GPUs run, float32, on the caller's current stream.

Importing builds nothing: the library is found or built (build.py) when the first operator runs.
"""

from cuda_src.compiled.adam import adam_rows, project_backward_adam
from cuda_src.compiled.binning import begin_bins, bin_splats
from cuda_src.compiled.bounds import bound_groups, groups_seen, widen_groups
from cuda_src.compiled.exchange import (
    keep_records,
    pack_gradients,
    pack_records,
    route_splats,
    route_whole,
    sum_gradients,
    take_flags,
    unpack_records,
)
from cuda_src.compiled.loss import l1_ssim
from cuda_src.compiled.packing import pack_rows, unpack_rows
from cuda_src.compiled.projection import project, project_backward
from cuda_src.compiled.raster import raster_backward, raster_forward
from cuda_src.compiled.remote import add_to_owners
from cuda_src.compiled.statistics import densification_statistics

__all__ = [
    "adam_rows",
    "add_to_owners",
    "begin_bins",
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
    "project_backward_adam",
    "raster_backward",
    "raster_forward",
    "route_splats",
    "route_whole",
    "sum_gradients",
    "take_flags",
    "unpack_records",
    "unpack_rows",
    "widen_groups",
]

READS_BOUNDS = True
"""`project` looks only at groups of rows that a view may see; moving rows widens bounds (`KernelSet.reads_bounds`)."""

LEAVES_IDS = True
"""`project` need not copy ids, and `bin_splats` then looks them up by row (`KernelSet.leaves_ids`)."""

PROJECTS_IN_PLACE = True
"""`project` can put records where they travel or are kept (`KernelSet.projects_in_place`)."""

TAKES_ROOMS = True
"""`project` and `bin_splats` take a `Room` and then read nothing on the host (`KernelSet.takes_rooms`)."""
