"""Building the kernels: nvcc once for each content of sources, architecture, compiler and system library."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cuda_src import camera, layout
from cuda_src.cache import cache_directory
from cuda_src.compiled.view import View
from cuda_src.nvcc import find_nvcc
from cuda_src.operators import LOSS_BLOCK
from cuda_src.packing import MOST_TABLES

SOURCES = Path(__file__).parent
ARCHITECTURE = "90"
"""Compute capability of machine code, Hopper; PTX goes along for later ones."""
ARCHITECTURE_VARIABLE = "SPLAT_HARNESS_CUDA_ARCH"
"""Environment variable with another architecture, for example 80 or 90a."""

LIBRARY = "kernels.so"
RESOURCES = "resources.txt"
LOSS_WINDOWS = {"exact": 0, "tile": 1, "l1": 2}
_C_TYPES: dict[type, str] = {ctypes.c_float: "float", ctypes.c_int: "int"}


class BuildError(RuntimeError):
    """The kernels cannot be built here; the message says why in one sentence."""


@dataclass(frozen=True)
class Build:
    """A finished build: the folder with the library, the PTX and the compiler's account of resources."""

    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / LIBRARY

    @property
    def resources(self) -> str:
        """What ptxas says of every kernel: registers, shared memory, stack and spills."""
        return (self.folder / RESOURCES).read_text()

    @property
    def ptx(self) -> dict[str, str]:
        """PTX by the name of its source file."""
        return {file.stem: file.read_text() for file in sorted(self.folder.glob("*.ptx"))}


def generated_header() -> str:
    """Constants and structs that Python owns, as C++: tiles, columns of the layout, and the view."""
    values = {
        "TILE": camera.TILE,
        "SUBTILE_WIDTH": camera.SUBTILE_WIDTH,
        "SUBTILE_HEIGHT": camera.SUBTILE_HEIGHT,
        "LOSS_BLOCK": LOSS_BLOCK,
        "MOST_TABLES": MOST_TABLES,
    } | {f"WINDOW_{kind.upper()}": number for kind, number in LOSS_WINDOWS.items()}
    for name, value in vars(layout).items():
        if name.isupper() and isinstance(value, int | slice):
            values[name] = value.start if isinstance(value, slice) else value
    lines = ["// Generated from cuda_src/camera.py, layout.py and compiled/view.py.", "#pragma once", ""]
    lines += [f"constexpr int {name} = {value};" for name, value in values.items()]
    lines += ["", "struct View {"]
    fields: Any = View._fields_
    for name, kind in fields:
        if issubclass(kind, ctypes.Array):
            lines.append(f"    {_C_TYPES[kind._type_]} {name}[{kind._length_}];")
        else:
            lines.append(f"    {_C_TYPES[kind]} {name};")
    return "\n".join([*lines, "};", ""])


def source_files() -> list[Path]:
    """Kernel sources and headers, in a fixed order."""
    return sorted(file for file in SOURCES.iterdir() if file.suffix in {".cu", ".cuh", ".h"})


def architecture() -> str:
    """The architecture to build for: SPLAT_HARNESS_CUDA_ARCH, else Hopper's."""
    return os.environ.get(ARCHITECTURE_VARIABLE) or ARCHITECTURE


def build(arch: str | None = None) -> Build:
    """The library for that architecture: found in the cache, or built into it. Raises BuildError with the reason."""
    arch = arch or architecture()
    nvcc = find_nvcc()
    if nvcc is None:
        raise BuildError("compiled kernels need nvcc; none in CUDA_HOME, on the PATH or among NVIDIA's wheels")
    files = source_files()
    folder = cache_directory("compiled") / content_key(files, arch, compiler_version(nvcc))
    if not (folder / LIBRARY).is_file():
        with _locked(folder.with_suffix(".lock")):
            if not (folder / LIBRARY).is_file():
                _compile(nvcc, files, arch, folder)
    return Build(folder)


def content_key(files: list[Path], arch: str, compiler: str) -> str:
    """Hash of all that decides what the library holds and where it loads."""
    content = hashlib.sha256()
    for part in (generated_header(), arch, compiler, platform.machine(), *platform.libc_ver()):
        content.update(part.encode() + b"\0")
    for file in files:
        content.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return content.hexdigest()[:20]


@cache
def compiler_version(nvcc: Path) -> str:
    """The last line of `nvcc --version`, which names the build."""
    try:
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"compiled kernels need a working nvcc; {nvcc} --version fails: {error}") from None
    return answer.stdout.strip().splitlines()[-1]


def _compile(nvcc: Path, files: list[Path], arch: str, folder: Path) -> None:
    """Build in a folder beside the final one, which then appears whole or not at all."""
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix="building-"))
    try:
        kept = work / "kept"
        kept.mkdir()
        (work / "generated.h").write_text(generated_header())
        command = [
            str(nvcc),
            "-O3",
            "-std=c++17",
            f"-gencode=arch=compute_{arch},code=[sm_{arch},compute_{arch}]",
            "-Xptxas=-v",
            "--threads=0",
            "-shared",
            "-Xcompiler=-fPIC,-fvisibility=hidden",
            f"-I{work}",
            f"-I{SOURCES}",
            "--keep",
            f"--keep-dir={kept}",
            f"-o={work / LIBRARY}",
            *(str(file) for file in files if file.suffix == ".cu"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=work)
        if done.returncode != 0:
            raise BuildError(f"nvcc failed on the compiled kernels:\n{(done.stderr + done.stdout).strip()}")
        (work / RESOURCES).write_text(done.stderr + done.stdout)
        for ptx in kept.glob("*.ptx"):
            ptx.rename(work / ptx.name)
        shutil.rmtree(kept)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Of several processes that want the same build, one builds and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
