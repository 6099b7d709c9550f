"""The portable back end's CUDA kernels: compiled to PTX and simulated where there is no GPU; on one, whole steps."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cuda_src.portable
from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace

ROOT = Path(cuda_src.__file__).parents[1]
RUNTIME = Path("cuda_src/portable/on_cuda/runtime.py")
ON_CUDA = "cuda_src.portable.on_cuda"


def imports_numba_cuda(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(a.name.startswith("numba.cuda") for a in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            if module.startswith("numba.cuda") or (module == "numba" and any(a.name == "cuda" for a in node.names)):
                return True
    return False


def test_one_module_imports_numba_cuda():
    sources = [p for layer in ("cuda_src", "strategies", "harness") for p in (ROOT / layer).rglob("*.py")]
    assert [p.relative_to(ROOT) for p in sources if imports_numba_cuda(p.read_text())] == [RUNTIME]


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("from numba import njit, cuda", True),
        ("def f():\n    import numba.cuda.compiler", True),
        ("from numba.cuda.core import config", True),
        ("import numba\nfrom numba import njit", False),
        ("from cuda_src.portable.on_cuda.runtime import cuda", False),
    ],
)
def test_imports_of_numba_cuda_are_found_in_every_form(source, imports):
    assert imports_numba_cuda(source) == imports


def test_without_numba_cuda_a_kernel_set_on_a_gpu_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(ON_CUDA)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(cuda_src.portable, "on_cuda", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    kernels = KernelSet("portable", torch.device("cuda"))
    with pytest.raises(ModuleNotFoundError, match=r"need numba-cuda: pip install 'splat-harness\[cuda\]'"):
        op.bin_splats(kernels, None, None, None)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if name.startswith(ON_CUDA)]:
        del sys.modules[name]


def test_simulated_kernels_agree_with_float64():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = Path(__file__).with_name("simulated_kernels.py")
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "raster_fused of the portable back end runs on CPUs only" in done.stdout


class Compiler:
    """Stands in for launches: compiles the kernel for sm_90 for the types it is given, and runs nothing."""

    def __init__(self, runtime):
        self._runtime, self._numba = runtime, importlib.import_module("numba")
        self.ptx: dict[tuple[str, str], str] = {}

    def compile(self, source, arguments) -> str:
        signature = tuple(self._numba.typeof(value) for value in self._runtime.arguments_of(arguments))
        ptx, _ = self._runtime.cuda.compile(source, signature, device=False, abi="numba", cc=(9, 0))
        return ptx

    def launch(self, kernel, device, blocks, threads, *arguments) -> None:
        types = str([str(self._numba.typeof(v)) for v in self._runtime.arguments_of(arguments)])
        if (kernel.name, types) not in self.ptx:
            self.ptx[kernel.name, types] = self.compile(kernel.source, arguments)


@pytest.fixture
def compiler(monkeypatch):
    """All kernels are launched through it; without a GPU and with zeros in every workspace."""
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    runtime = importlib.import_module(f"{ON_CUDA}.runtime")
    nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
    try:
        nvvm.NVVM()
    except Exception as error:
        pytest.skip(f"needs libnvvm, as numba-cuda[cu13] brings it: {error}")
    hopper = SimpleNamespace(compute_capability=(9, 0))
    for name in ("compiler", "dispatcher"):  # Device functions are compiled for the present device.
        monkeypatch.setattr(importlib.import_module(f"numba.cuda.{name}"), "get_current_device", lambda: hopper)
    compiler = Compiler(runtime)
    monkeypatch.setattr(runtime.Kernel, "launch", lambda kernel, *given: compiler.launch(kernel, *given))
    monkeypatch.setattr(
        Workspace, "take", lambda self, name, shape, dtype=torch.float32: torch.zeros(shape, dtype=dtype)
    )
    return compiler


def kernels_of_the_package() -> set[str]:
    package = importlib.import_module(ON_CUDA)
    modules = [importlib.import_module(f"{ON_CUDA}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    runtime = importlib.import_module(f"{ON_CUDA}.runtime")
    return {value.name for module in modules for value in vars(module).values() if isinstance(value, runtime.Kernel)}


def test_every_kernel_compiles_to_ptx_without_float64(compiler):
    kernels, camera, work = (
        KernelSet("portable", torch.device("cuda")),
        Camera(20, 20, 20.0, 20.0, 10.0, 10.0, np.eye(4)),
        Workspace(),
    )
    parameters, ids = torch.zeros(3, layout.PARAMETERS), torch.arange(3)
    splats = op.project(kernels, parameters, ids, camera, 3, work)
    bins = op.bin_splats(kernels, splats, camera, work)
    raster = op.raster_forward(kernels, splats, bins, camera, work)
    target = torch.zeros(20, 20, 3, dtype=torch.uint8)
    for kind in ("exact", "tile", "l1"):
        op.l1_ssim(kernels, raster.colour, target, work, window=op.LossWindow(kind))
    partial = op.raster_backward(kernels, splats, bins, raster, camera, raster.colour, work)
    op.project_backward(kernels, parameters, splats, camera, 3, partial, work)
    op.densification_statistics(kernels, splats, camera, partial, torch.zeros(3, layout.STATISTICS))
    moments, views = torch.zeros_like(parameters), torch.ones(3, dtype=torch.int32)
    op.adam_rows(kernels, parameters, moments, moments.clone(), ids, parameters.clone(), views, torch.ones(59), 1)
    assert {name for name, _ in compiler.ptx} == kernels_of_the_package()
    assert len(compiler.ptx) == len(kernels_of_the_package()), "a kernel was compiled for several sets of types"
    for (name, _), ptx in compiler.ptx.items():
        assert ".entry" in ptx
        assert ".f64" not in ptx, name
        # Divisions and roots as exact as the CPU's, and no function left to be called.
        assert not [word for word in ("div.approx", "sqrt.approx", "lg2.approx", "call.uni") if word in ptx], name


def a_tenth(values):
    values[0] = values[0] * 0.1


def test_an_untyped_literal_would_be_found_in_ptx(compiler):
    assert ".f64" in compiler.compile(a_tenth, (torch.zeros(1),))


@pytest.fixture
def device(device: torch.device) -> torch.device:
    pytest.importorskip("numba_cuda", reason="needs numba-cuda")
    return device


@pytest.mark.gpu
def test_kernels_wait_for_what_torchs_current_stream_does_before_them(parity, device):
    view, kernels = parity.view(3, gaussians=200), KernelSet("portable", device)
    expected = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, Workspace(device))
    # Behind the camera until the copy, which waits.
    late, ids = torch.full(view.parameters.shape, -9.0, device=device), view.ids.to(device)
    source = view.parameters.to(device)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        torch.cuda._sleep(200_000_000)
        late.copy_(source)
        splats = op.project(kernels, late, ids, view.camera, 3, Workspace(device))
        assert splats.count > 0
        assert torch.equal(splats.records, expected.records)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [255, 256, 257, 3000])
def test_lists_of_one_batch_and_of_several_are_composited_as_on_a_cpu(parity, device, count):
    view = parity.view(count, gaussians=count, width=40, height=24, sizes=(8.0, 40.0))
    view.parameters[:, layout.OPACITY_LOGIT] = -4.0
    grad = torch.randn(24, 40, 3, generator=torch.Generator().manual_seed(count))
    results = []
    for place in (torch.device("cpu"), device):
        kernels, work = KernelSet("portable", place, t_stop=0.0), Workspace(place)
        splats = op.project(kernels, view.parameters.to(place), view.ids.to(place), view.camera, 3, work)
        bins = op.bin_splats(kernels, splats, view.camera, work)
        raster = op.raster_forward(kernels, splats, bins, view.camera, work)
        partial = op.raster_backward(kernels, splats, bins, raster, view.camera, grad.to(place), work)
        results.append([t.cpu() for t in (raster.colour, raster.transmittance, raster.depth, partial)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        # A few splats lie on the other side of alpha_min at a pixel, each worth 1/255 of what is left there.
        error = (ours - theirs).abs()
        assert error.mean() <= 1e-5 * theirs.abs().max()
        assert error.max() <= 5e-3 * theirs.abs().max()


@pytest.mark.gpu
def test_a_table_stored_column_by_column_is_updated_in_place(device):
    generator = torch.Generator().manual_seed(0)
    tables = [torch.rand(40, layout.PARAMETERS, generator=generator).to(device) for _ in range(3)]
    planes = [table.t().contiguous().t() for table in tables]
    rows, views = torch.arange(0, 40, 3, device=device), torch.ones(14, dtype=torch.int32, device=device)
    gradients, rates = torch.rand(14, layout.PARAMETERS, device=device), torch.ones(layout.PARAMETERS, device=device)
    kernels = KernelSet("portable", device)
    for some in (tables, planes):
        op.adam_rows(kernels, *some, rows, gradients, views, rates, 5)
    for table, plane in zip(tables, planes, strict=True):
        assert plane.stride() == (1, 40)
        assert torch.equal(plane, table)


@pytest.mark.gpu
def test_the_second_visit_of_a_view_needs_no_new_workspace(parity, device):
    view, work, kernels = parity.view(6, gaussians=500), Workspace(device), KernelSet("portable", device)
    parameters, ids = view.parameters.to(device), view.ids.to(device)
    target = torch.zeros((*view.pixels, 3), dtype=torch.uint8, device=device)
    sizes = []
    for _ in range(2):
        splats = op.project(kernels, parameters, ids, view.camera, 3, work)
        bins = op.bin_splats(kernels, splats, view.camera, work)
        raster = op.raster_forward(kernels, splats, bins, view.camera, work)
        loss = op.l1_ssim(kernels, raster.colour, target, work)
        partial = op.raster_backward(kernels, splats, bins, raster, view.camera, loss.gradient, work)
        op.project_backward(kernels, parameters, splats, view.camera, 3, partial, work)
        sizes.append(work.bytes)
    assert sizes[0] == sizes[1] > 0


@pytest.mark.gpu
def test_all_kernels_are_compiled_ahead_by_one_call(device):
    told: list[str] = []
    cuda_src.portable.compile_all(told.append, "cuda")
    assert "raster_backward" in told
    assert "raster_fused" not in told
