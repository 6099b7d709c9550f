"""Random views, and how two back ends are compared: every back end is held to `reference` in float64.

Each operator is given the same inputs on both sides, float32 values exactly representable in float64, so that an
error is the operator's own. What may still differ is a decision: float32 can fall on the other side of a threshold
(alpha_min, alpha_max, the stop, a footprint's edge). Inputs whose float64 value lies within BORDER of a threshold are
left out, and the tests bound how many that are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src.camera import TILE, Camera
from cuda_src.conventions import CONVENTIONS
from cuda_src.operators import Bins, Fused, KernelSet, Loss, Raster, Splats
from cuda_src.reference.binning import least_sigma, tile_rectangles
from cuda_src.reference.projection import sh_basis, splat_records
from cuda_src.workspace import Workspace

PORTABLE_ON_CUDA = "portable_on_cuda"
"""Test name of the portable back end on a GPU."""
BACKENDS = (
    "reference",
    "portable",
    pytest.param(PORTABLE_ON_CUDA, marks=pytest.mark.gpu),
    pytest.param("compiled", marks=pytest.mark.gpu),
)
"""Back ends under test, in float32. A new one joins the whole suite by its name here."""

BORDER = 1e-4
"""Relative distance from a threshold within which float32 may decide differently."""


@dataclass(frozen=True)
class View:
    """Gaussians before a camera: parameters [N, 59] float32, ids [N] int64."""

    parameters: torch.Tensor
    ids: torch.Tensor
    camera: Camera

    @property
    def pixels(self) -> tuple[int, int]:
        return self.camera.height, self.camera.width

    def only(self, rows: list[int]) -> View:
        return replace(self, parameters=self.parameters[rows], ids=self.ids[rows])

    def having(self, row: int, **groups: float | list[float]) -> View:
        """The same view with one Gaussian's parameter groups replaced."""
        parameters = self.parameters.clone()
        for name, value in groups.items():
            parameters[row, layout.PARAMETER_GROUPS[name]] = torch.tensor(value)
        return replace(self, parameters=parameters)


def _rotation(rng: np.random.Generator) -> np.ndarray:
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q if np.linalg.det(q) > 0 else -q


def build_view(
    seed: int, gaussians: int = 40, width: int = 50, height: int = 40, sizes: tuple[float, float] = (0.7, 12.0)
) -> View:
    """Gaussians of `sizes` pixels, some behind the camera or outside the image; principal point off centre."""
    rng = np.random.default_rng(seed)
    focal = 40.0 + 20.0 * rng.random()
    transform = np.eye(4)
    transform[:3, :3] = _rotation(rng)
    transform[:3, 3] = rng.normal(size=3)
    camera = Camera(width, height, focal, focal * 1.1, 0.3 * width, 0.6 * height, transform)

    depth = rng.uniform(0.5, 6.0, gaussians) * np.where(rng.random(gaussians) < 0.08, -1.0, 1.0)
    x = (rng.uniform(-0.3, 1.3, gaussians) * width - camera.cx) / camera.fx * depth
    y = (rng.uniform(-0.3, 1.3, gaussians) * height - camera.cy) / camera.fy * depth
    seen = np.stack([x, y, depth], axis=1)
    parameters = np.zeros((gaussians, layout.PARAMETERS))
    parameters[:, layout.MEAN] = (seen - transform[:3, 3]) @ transform[:3, :3]
    size = np.exp(rng.uniform(np.log(sizes[0]), np.log(sizes[1]), gaussians)) * np.abs(depth) / focal
    parameters[:, layout.LOG_SCALE] = np.log(size)[:, None] + rng.uniform(-1.0, 0.5, (gaussians, 3))
    parameters[:, layout.QUATERNION] = rng.normal(size=(gaussians, 4)) * rng.uniform(0.5, 2.0, (gaussians, 1))
    parameters[:, layout.OPACITY_LOGIT] = rng.normal(0.5, 2.0, gaussians)
    parameters[:, layout.SH] = rng.normal(0.0, 0.4, (gaussians, layout.SH.stop - layout.SH.start))
    ids = rng.permutation(gaussians).astype(np.int64) * 1_000_003 + 7
    return View(torch.tensor(parameters, dtype=torch.float32), torch.from_numpy(ids), camera)


def kernels(backend: str, convention: str = "standard", **settings: object) -> KernelSet:
    return KernelSet(backend, convention=CONVENTIONS[convention], **settings)


def in_float64(kernels: KernelSet) -> KernelSet:
    """The oracle of a kernel set: `reference` in float64 with the same convention, footprint and stop."""
    return replace(kernels, backend="reference", precision="float64")


def splats_in_float64(splats: Splats) -> Splats:
    return replace(splats, records=splats.records.double())


def _clear_of_edges(kernels: KernelSet, records: torch.Tensor, camera: Camera) -> torch.Tensor:
    """[V] bool: footprints that neither just touch nor just miss a tile. records: float64."""
    rectangles = tile_rectangles(camera, torch.arange(camera.tiles), torch.float64)
    if kernels.footprint == "ellipse":
        reach = torch.log(records[:, layout.RECORD_OPACITY] / kernels.convention.alpha_min)[:, None]
        gap = (least_sigma(records, rectangles) - reach).abs() / (1 + reach.abs())
    else:
        mean, radius = records[:, layout.RECORD_MEAN2D], records[:, layout.RECORD_RADIUS, None, None]
        edges = rectangles.view(1, -1, 4) - mean.repeat(1, 2)[:, None, :]
        gap = (edges.abs() - radius).abs().amin(dim=2)
    return (gap > BORDER).all(dim=1)


def away_from_footprint_edges(kernels: KernelSet, splats: Splats, camera: Camera) -> Splats:
    """The splats whose footprint neither just touches nor just misses a tile."""
    clear = _clear_of_edges(kernels, splats.records.double(), camera)
    assert not len(clear) or clear.double().mean() >= 0.9
    return Splats(splats.rows[clear], splats.ids[clear], splats.records[clear])


def clear_rows(kernels: KernelSet, view: View, sh_degree: int) -> torch.Tensor:
    """[N] bool: Gaussians whose projection lies within BORDER of no decision: culling, clamps, rounding up."""
    parameters, camera, convention = view.parameters.double(), view.camera, kernels.convention
    records = splat_records(parameters, camera, sh_degree, convention)
    depth, opacity = records[:, layout.RECORD_DEPTH], records[:, layout.RECORD_OPACITY]
    a, b, c = records[:, layout.RECORD_CONIC].unbind(dim=1)
    longest = 3 / torch.sqrt(0.5 * (a + c) - torch.sqrt(0.25 * (a - c) ** 2 + b * b))
    offset = parameters[:, layout.MEAN] - torch.from_numpy(camera.centre)
    basis = sh_basis(offset / offset.norm(dim=1, keepdim=True), sh_degree)
    coefficients = parameters[:, layout.SH].view(len(parameters), layout.SH_COEFFICIENTS, 3)[:, : basis.shape[1]]
    colour = (basis[:, :, None] * coefficients).sum(dim=1) + 0.5
    clear = _clear_of_edges(kernels, records, camera) & (colour.abs() > BORDER).all(dim=1)
    clear &= ((opacity / convention.alpha_min - 1).abs() > BORDER) & (
        (longest - longest.round()).abs() > BORDER * longest
    )
    for axis, size in ((0, camera.width), (1, camera.height)):
        margin = convention.jacobian_margin * 0.5 * size
        for limit in (-margin, size + margin):
            clear &= (records[:, axis] - limit).abs() > BORDER * size
    return ((depth / convention.near - 1).abs() > BORDER) & (clear | (depth < convention.near))


def clear_pixels(
    kernels: KernelSet, splats: Splats, bins: Bins, camera: Camera, start: torch.Tensor | None = None
) -> torch.Tensor:
    """[H, W] bool: pixels at which no alpha and no transmittance lies within BORDER of a threshold."""
    convention = kernels.convention
    clear = torch.ones(camera.height, camera.width, dtype=torch.bool)
    for k, tile in enumerate(bins.tiles.tolist()):
        top, left = tile // camera.tiles_x * TILE, tile % camera.tiles_x * TILE
        y, x = torch.meshgrid(
            torch.arange(top, min(top + TILE, camera.height)),
            torch.arange(left, min(left + TILE, camera.width)),
            indexing="ij",
        )
        records = splats.records.double()[bins.splat[bins.starts[k] : bins.starts[k + 1]].long()]
        dx = x[..., None] + 0.5 - records[:, 0]
        dy = y[..., None] + 0.5 - records[:, 1]
        sigma = 0.5 * (records[:, 2] * dx**2 + records[:, 4] * dy**2) + records[:, 3] * dx * dy
        density = records[:, layout.RECORD_OPACITY] * torch.exp(-sigma)
        alpha = density.clamp(max=convention.alpha_max)
        light = torch.cumprod(torch.where(alpha < convention.alpha_min, 1.0, 1 - alpha), dim=-1)
        if start is not None:
            light = light * start.double()[y, x][..., None]

        def near(values: torch.Tensor, threshold: float) -> torch.Tensor:
            return ((values / threshold - 1).abs() < BORDER).any(dim=-1)

        border = near(density, convention.alpha_min) | near(density, convention.alpha_max) | near(light, kernels.stop)
        clear[y, x] = ~border
    return clear


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str = "values") -> None:
    """Largest error within `tolerance` of the largest expected value (of 1 where all are smaller than 1e-12)."""
    assert torch.isfinite(actual).all(), f"{what} are not finite"
    if expected.numel() == 0:
        assert actual.numel() == 0, what
        return
    largest = expected.abs().max().item()
    error = (actual.double() - expected.double()).abs().max().item()
    assert error <= tolerance * (largest if largest > 1e-12 else 1.0), f"{what}: error {error:.3g} of {largest:.3g}"


def assert_groups_close(actual: torch.Tensor, expected: torch.Tensor, groups: dict, tolerance: float = 1e-4) -> None:
    """Gradients by group of columns: each within `tolerance` of its group's largest gradient."""
    for name, columns in groups.items():
        assert_close(actual[:, columns], expected[:, columns], tolerance, f"gradient of {name}")


RECORD_GROUPS = {
    "mean2d": layout.RECORD_MEAN2D,
    "conic": layout.RECORD_CONIC,
    "opacity": slice(layout.RECORD_OPACITY, layout.RECORD_OPACITY + 1),
    "colour": layout.RECORD_COLOUR,
    "depth": slice(layout.RECORD_DEPTH, layout.RECORD_DEPTH + 1),
}


@dataclass(frozen=True)
class Parity:
    """The functions above, for tests (test files share no importable module)."""

    view: Callable[..., View] = build_view
    kernels: Callable[..., KernelSet] = kernels
    oracle: Callable[[KernelSet], KernelSet] = in_float64
    splats64: Callable[[Splats], Splats] = splats_in_float64
    away_from_edges: Callable[[KernelSet, Splats, Camera], Splats] = away_from_footprint_edges
    clear_rows: Callable[[KernelSet, View, int], torch.Tensor] = clear_rows
    clear_pixels: Callable[..., torch.Tensor] = clear_pixels
    close: Callable[..., None] = assert_close
    groups_close: Callable[..., None] = assert_groups_close
    record_groups = RECORD_GROUPS
    border = BORDER


@pytest.fixture
def device() -> torch.device:
    """The first GPU; tests that take it are skipped without one."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device("cuda", 0)


@pytest.fixture(name="kernels")
def compiled_kernels(device: torch.device) -> KernelSet:
    """The compiled kernels on that GPU, with standard conventions."""
    return KernelSet("compiled", device)


@pytest.fixture(scope="session")
def parity() -> Parity:
    return Parity()


IN_PLACE = (
    "adam_rows",
    "bound_groups",
    "densification_statistics",
    "groups_seen",
    "pack_rows",
    "unpack_rows",
    "widen_groups",
)
"""Operators that write into tensors they are given."""


class OnGpu:
    """A back end on a GPU for tests that hold everything on the CPU: there and back around each operator."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._module = importlib.import_module(f"cuda_src.{backend}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if not hasattr(self._module, name):
            pytest.skip(f"{self._backend} kernels have no {name}")

        def operator(kernels: KernelSet, *arguments: Any) -> Any:
            place = torch.device("cuda", 0)
            there = [_moved(argument, place) for argument in arguments]
            try:
                result = getattr(self._module, name)(replace(kernels, backend=self._backend, device=place), *there)
            except NotImplementedError as error:
                pytest.skip(str(error))
            if name in IN_PLACE:
                for here, moved in zip(arguments, there, strict=True):
                    _copy_back(here, moved)
            return _moved(result, torch.device("cpu"))

        return operator


def _moved(value: Any, device: torch.device) -> Any:
    """A copy on that device; a workspace becomes a new one."""
    if isinstance(value, Workspace):
        return Workspace(device)
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if isinstance(value, Splats | Bins | Raster | Loss | Fused):
        return replace(value, **{f.name: _moved(getattr(value, f.name), device) for f in fields(value)})
    if isinstance(value, list):
        return [_moved(v, device) for v in value]
    return value


def _copy_back(here: Any, moved: Any) -> None:
    if isinstance(here, torch.Tensor):
        here.copy_(moved)
    elif isinstance(here, list):
        for own, other in zip(here, moved, strict=True):
            _copy_back(own, other)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    on_gpu = {"compiled": "compiled", PORTABLE_ON_CUDA: "portable"}.get(request.param)
    if on_gpu is None:
        yield request.param
        return
    if not torch.cuda.is_available():
        pytest.skip(f"{on_gpu} kernels on cuda need a GPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, f"cuda_src.{request.param}", OnGpu(on_gpu))
        yield request.param
