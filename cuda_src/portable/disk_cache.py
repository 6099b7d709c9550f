"""Where Numba keeps compiled kernels, so that an edit of any source or a move to another CPU compiles anew."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import llvmlite.binding
import numba

from cuda_src.cache import cache_directory


def source_key() -> str:
    """Hash of everything that a compiled kernel depends on.

    Numba looks only at the file of the cached function: an edit of a scalar function in another file would leave
    its callers stale. So the key covers every Python source of the package, Numba, Python and the CPU's features.
    """
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        digest.update(source.relative_to(package).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    features = llvmlite.binding.get_host_cpu_features().flatten()
    for fact in (numba.__version__, platform.python_version(), llvmlite.binding.get_host_cpu_name(), features):
        digest.update(fact.encode() + b"\0")
    return digest.hexdigest()[:16]


def use_disk_cache() -> None:
    """Point Numba at the folder of this key; decorators read it, so call this before the first of them runs."""
    numba.config.CACHE_DIR = str(cache_directory("numba") / source_key())  # type: ignore[attr-defined]
