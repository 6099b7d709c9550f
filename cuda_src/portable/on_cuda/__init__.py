"""The portable back end on a GPU: CUDA kernels around the scalar functions that the CPU's loops are made of.

Every operator but `raster_fused`, with PyTorch's sorts and prefix sums between kernels: readable, not fast.
"""

from cuda_src.portable.on_cuda.adam import adam_rows
from cuda_src.portable.on_cuda.binning import bin_splats
from cuda_src.portable.on_cuda.compositing import raster_forward
from cuda_src.portable.on_cuda.compositing_gradient import raster_backward
from cuda_src.portable.on_cuda.loss import l1_ssim
from cuda_src.portable.on_cuda.projection import project, project_backward
from cuda_src.portable.on_cuda.statistics import densification_statistics

__all__ = [
    "adam_rows",
    "bin_splats",
    "densification_statistics",
    "l1_ssim",
    "project",
    "project_backward",
    "raster_backward",
    "raster_forward",
]
