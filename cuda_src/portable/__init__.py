"""Numba: scalar mathematics written once, compiled for CPU threads (here) and for CUDA (`on_cuda`).

Importing this package chooses where Numba keeps compiled kernels; nothing is compiled before the first call.
"""

from cuda_src.portable.disk_cache import use_disk_cache

use_disk_cache()

# Only now: decorators of cached functions look at the folder when they run.
from cuda_src.portable.adam import adam_rows  # noqa: E402
from cuda_src.portable.binning import bin_splats  # noqa: E402
from cuda_src.portable.compilation import compile_all  # noqa: E402
from cuda_src.portable.compositing import raster_forward  # noqa: E402
from cuda_src.portable.compositing_gradient import raster_backward  # noqa: E402
from cuda_src.portable.fused import raster_fused  # noqa: E402
from cuda_src.portable.loss import l1_ssim  # noqa: E402
from cuda_src.portable.projection import project, project_backward  # noqa: E402
from cuda_src.portable.statistics import densification_statistics  # noqa: E402
from cuda_src.reference.exchange import (  # noqa: E402  On its own tile lists; the rest is copies.
    add_to_owners,
    keep_records,
    pack_gradients,
    pack_records,
    route_splats,
    sum_gradients,
    take_flags,
    unpack_records,
)
from cuda_src.reference.packing import pack_rows, unpack_rows  # noqa: E402  Copies, which torch makes as well.

__all__ = [
    "adam_rows",
    "add_to_owners",
    "bin_splats",
    "compile_all",
    "densification_statistics",
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
]
