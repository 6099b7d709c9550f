"""The scalar functions that CPU loops and CUDA kernels share: accurate, and float32 throughout."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import numpy as np
import pytest
import torch
from numba import njit, types
from numba.core.registry import CPUDispatcher

import cuda_src.portable
from cuda_src import operators
from cuda_src.camera import Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import KernelSet
from cuda_src.portable import compile_all
from cuda_src.portable.scalar import exp_nonpositive, finite_or_zero
from cuda_src.workspace import Workspace

F32 = types.float32
PAIR_OF_ROWS = types.Tuple((types.UniTuple(F32, 3), types.UniTuple(F32, 3)))
LENGTHS = {
    "conic": 3,
    "rotation": 9,
    "axes": 9,
    "view": 3,
    "pinhole": 4,
    "bounds": 4,
    "quaternion": 4,
    "unit": 4,
    "scales": 3,
    "basis": 16,
    "c": 16,
    "s": 16,
}
"""Arguments that are tuples of numbers, by their names."""
GRADIENT_LENGTHS = {"rotation_gradient": 9, "axes_gradient": 9, "conic_gradient": 3, "normalised_gradient": 4}
OTHERS = {
    "rows": PAIR_OF_ROWS,
    "degree": types.intp,
    "tile": types.intp,
    "subtile": types.intp,
    "tiles": types.intp,
    "size": types.intp,
    "b": types.uint8,
    "blended": types.boolean,
}


def modules() -> list[ModuleType]:
    """Those of the CPU's loops; the package for GPUs needs numba-cuda."""
    names = [m.name for m in pkgutil.iter_modules(cuda_src.portable.__path__) if not m.ispkg]
    return [importlib.import_module(f"cuda_src.portable.{name}") for name in names]


def dispatchers(module: ModuleType) -> list[CPUDispatcher]:
    """Functions that this module itself defines."""
    found = [value for value in vars(module).values() if isinstance(value, CPUDispatcher)]
    return [value for value in found if value.py_func.__module__ == module.__name__]


SCALARS = [f for m in modules() if m.__name__.split(".")[-1].startswith("scalar") for f in dispatchers(m)]
LOOPS = [f for m in modules() for f in dispatchers(m) if f.targetoptions.get("no_cpython_wrapper") is None]


def argument_type(function: CPUDispatcher, name: str) -> types.Type:
    if name == "g" and function.__name__ == "image_rows_gradient":
        return PAIR_OF_ROWS
    if name == "g" and function.__name__ in GRADIENT_LENGTHS:
        return types.UniTuple(F32, GRADIENT_LENGTHS[function.__name__])
    if name in LENGTHS:
        return types.UniTuple(F32, LENGTHS[name])
    return OTHERS.get(name, F32)


@pytest.mark.parametrize("function", SCALARS, ids=lambda f: f.__name__)
def test_a_scalar_function_meets_no_float64(function):
    signature = tuple(argument_type(function, name) for name in inspect.signature(function.py_func).parameters)
    function.compile(signature)
    assert " double" not in function.inspect_llvm(signature)
    assert "float64" not in str(function.overloads[signature].signature)


@njit
def exponentials(x, out):
    for i in range(x.size):
        out[i] = exp_nonpositive(x[i])


def test_exp_is_accurate_to_two_units_in_the_last_place():
    x = np.concatenate([np.linspace(-87, 0, 400_001), np.linspace(-1e-3, 0, 10_001), -np.geomspace(1e-30, 87, 10_001)])
    x = x.astype(np.float32)
    out = np.empty_like(x)
    exponentials(x, out)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(out - exact) / exact) < 2.0**-22
    exponentials(np.array([0.0, -88.0, -1e30, -np.inf], dtype=np.float32), out)
    assert out[0] == 1
    assert np.all((out[1:4] >= 0) & (out[1:4] < 2e-38))


@njit
def cleaned(x, out):
    for i in range(x.size):
        out[i] = finite_or_zero(x[i])


def test_only_what_is_not_finite_becomes_zero():
    largest = np.finfo(np.float32).max
    x = np.array([np.nan, np.inf, -np.inf, 1.5, -largest, largest, 1e-45], dtype=np.float32)
    out = np.empty_like(x)
    cleaned(x, out)
    assert out.tolist() == [0, 0, 0, *x[3:].tolist()]


def test_one_compilation_of_each_loop_serves_every_option():
    told: list[str] = []
    compile_all(told.append)
    assert told == [
        "project",
        "bin_splats",
        "raster_forward",
        "l1_ssim",
        "raster_backward",
        "raster_fused",
        "project_backward",
        "adam_rows",
        "densification_statistics",
    ]
    assert len(LOOPS) >= 12
    before = {f.__name__: list(f.signatures) for f in LOOPS}
    assert {name: len(signatures) for name, signatures in before.items()} == dict.fromkeys(before, 1)

    kernels = KernelSet(convention=CONVENTIONS["gsplat153"], footprint="square", t_stop=0.0, threads=2)
    workspace, camera = Workspace(), Camera(40, 30, 30.0, 30.0, 20.0, 15.0, np.eye(4))
    parameters = torch.zeros(600, 59)
    parameters[:, 2] = torch.linspace(2, 5, 600)
    parameters[:, 3:6] = -3
    tiles = torch.tensor([0, 2, 5], dtype=torch.int32)
    splats = operators.project(kernels, parameters, torch.arange(600), camera, 1, workspace)
    subtiles, limit = torch.full((6,), 0b10110111, dtype=torch.uint8), torch.full((6,), 4.5)
    bins = operators.bin_splats(kernels, splats, camera, workspace, tiles, subtiles, limit)
    per_pixel, background = torch.rand(30, 40), torch.rand(30, 40, 3)
    depth_range = torch.tensor([2.5, 4.0]).expand(30, 40, 2)
    raster = operators.raster_forward(kernels, splats, bins, camera, workspace, per_pixel, subtiles, depth_range)
    image, target, mask = (
        raster.colour,
        torch.zeros(30, 40, 3, dtype=torch.uint8),
        torch.ones(30, 40, dtype=torch.uint8),
    )
    loss = operators.l1_ssim(kernels, image, target, workspace, mask, tiles, "none", 0.5)
    # An upstream gradient that is not contiguous.
    upstream = loss.gradient.permute(1, 0, 2).contiguous().permute(1, 0, 2)
    operators.raster_backward(
        kernels,
        splats,
        bins,
        raster,
        camera,
        upstream,
        workspace,
        background,
        per_pixel,
        per_pixel,
        per_pixel,
        depth_range,
    )
    assert {f.__name__: list(f.signatures) for f in LOOPS} == before
