"""Finding the CUDA compiler, without torch: suites are planned with it before anything is built."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path


def find_nvcc() -> Path | None:
    """nvcc of CUDA_HOME, else of the PATH, else of NVIDIA's wheels in this environment; None without any."""
    home = os.environ.get("CUDA_HOME")
    if home and (Path(home) / "bin" / "nvcc").is_file():
        return Path(home) / "bin" / "nvcc"
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        # Of CUDA 12 the wheel has a folder of its own (cuda_nvcc), from 13 on all share one (cu13).
        for found in sorted(Path(folder).glob("*/bin/nvcc"), reverse=True):
            if os.access(found, os.X_OK):
                return found
    return None
