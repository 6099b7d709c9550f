"""CUDA C++: the back end that GPUs run, float32, on the caller's current stream.

Importing builds nothing: the library is found or built (build.py) when the first operator runs.
"""

from cuda_src.compiled.adam import adam_rows, project_backward_adam
from cuda_src.compiled.binning import bin_splats
from cuda_src.compiled.loss import l1_ssim
from cuda_src.compiled.projection import project, project_backward
from cuda_src.compiled.raster import raster_backward, raster_forward

__all__ = [
    "adam_rows",
    "bin_splats",
    "l1_ssim",
    "project",
    "project_backward",
    "project_backward_adam",
    "raster_backward",
    "raster_forward",
]
