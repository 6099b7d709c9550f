"""What `scene info` says of a scene: counts, and what its Gaussians cost to draw."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from cuda_src.camera import Camera
from cuda_src.operators import KernelSet, Splats, bin_splats, project, raster_forward
from cuda_src.workspace import Workspace
from harness.scenes.points import PointSource
from harness.scenes.scene import Scene
from strategies.base import GaussianSource

VIEWS = 16
"""Views that are drawn, evenly spaced."""

PIECE = 1 << 20
"""Gaussians projected at once: a scene may be larger than memory."""

PERCENTILES = (50, 90, 99, 100)
SH_DEGREE = 3


@dataclass(frozen=True)
class Drawing:
    """Means over the drawn views.

    visible_share: visible Gaussians over all. tile_instances: (splat, tile) pairs a view. list_lengths: at
    PERCENTILES, instances of a tile that has any, over all views. saturated_share: pixels whose compositing stopped.
    """

    gaussians: int
    views: int
    visible_share: float
    tile_instances: float
    list_lengths: tuple[float, ...]
    saturated_share: float


@dataclass(frozen=True)
class SceneInfo:
    """points, gaussians: how many, None where the scene has none. width, height: pixels, of the first view.

    extent: of the training cameras, world units. bounds: [2, 3] of the drawn Gaussians. drawing: of the scene's
    Gaussians, or of those of its points; None where it has neither.
    """

    name: str
    points: int | None
    gaussians: int | None
    train_views: int
    test_views: int
    width: int
    height: int
    extent: float
    bounds: np.ndarray | None
    content_hash: str
    credit: str
    facts: dict[str, object]
    drawing: Drawing | None


def scene_info(scene: Scene, kernels: KernelSet) -> SceneInfo:
    """Count the scene's parts, and draw up to VIEWS of its views with these kernels."""
    source = scene.gaussians
    if source is None and scene.points is not None:
        source = PointSource(scene.points)
    return SceneInfo(
        name=scene.name,
        points=None if scene.points is None else len(scene.points.positions),
        gaussians=None if scene.gaussians is None else scene.gaussians.count,
        train_views=len(scene.train_views),
        test_views=len(scene.test_views),
        width=scene.cameras[0].width,
        height=scene.cameras[0].height,
        extent=scene.extent,
        bounds=None if source is None else source.bounds,
        content_hash=scene.content_hash,
        credit=scene.credit,
        facts=scene.facts,
        drawing=None if source is None else _draw(scene, source, kernels),
    )


def info_json(info: SceneInfo) -> dict[str, Any]:
    """The fields for programs."""
    found = asdict(info)
    found["bounds"] = None if info.bounds is None else info.bounds.tolist()
    if found["drawing"] is not None:
        lengths = zip(PERCENTILES, found["drawing"].pop("list_lengths"), strict=True)
        found["drawing"]["list_lengths"] = {f"p{percentile}": length for percentile, length in lengths}
    return found


def info_table(info: SceneInfo) -> list[tuple[str, str]]:
    """The lines that `scene info` prints: what, and how much."""
    rows = [
        ("scene", info.name),
        *([("credit", info.credit)] if info.credit else []),
        ("views", f"{info.train_views + info.test_views} ({info.train_views} train, {info.test_views} test)"),
        ("image size", f"{info.width} x {info.height} px"),
        ("initial points", "none" if info.points is None else f"{info.points:,}"),
        ("Gaussians", "none" if info.gaussians is None else f"{info.gaussians:,}"),
        ("camera extent", f"{info.extent:.3g} world units"),
    ]
    if info.bounds is not None:
        lower, upper = (", ".join(f"{value:.3g}" for value in corner) for corner in info.bounds)
        rows.append(("bounds", f"({lower}) to ({upper})"))
    if info.drawing is not None:
        drawing = info.drawing
        lengths = "  ".join(
            f"{'max' if p == 100 else f'p{p}'} {value:,.0f}"
            for p, value in zip(PERCENTILES, drawing.list_lengths, strict=True)
        )
        what = "Gaussians" if info.gaussians is not None else "initial points"
        rows += [
            ("drawn", f"{drawing.gaussians:,} {what} in {drawing.views} views"),
            ("visible share", f"{drawing.visible_share:.2%} of them a view"),
            ("tile instances", f"{drawing.tile_instances:,.0f} a view"),
            ("tile lists", f"{lengths}  (tiles with any)"),
            ("saturated share", f"{drawing.saturated_share:.2%} of pixels"),
        ]
    rows += [(key.replace("_", " "), str(value)) for key, value in info.facts.items() if value is not None]
    rows.append(("content hash", info.content_hash[:16]))
    return rows


def _draw(scene: Scene, source: GaussianSource, kernels: KernelSet) -> Drawing:
    views = np.unique(np.linspace(0, len(scene.cameras) - 1, min(VIEWS, len(scene.cameras))).round().astype(int))
    whole = _read(source, 0, source.count, kernels) if source.count <= PIECE else None
    projection, drawing = Workspace(kernels.device), Workspace(kernels.device)
    visible, instances, saturated, lengths = [], [], [], []
    for view in views:
        camera = scene.cameras[view]
        splats = _project(source, whole, camera, kernels, projection)
        bins = bin_splats(kernels, splats, camera, drawing)
        raster = raster_forward(kernels, splats, bins, camera, drawing)
        visible.append(splats.count / source.count)
        instances.append(bins.instances)
        saturated.append(float(raster.stopped.to(torch.float32).mean()))
        lengths.append(torch.diff(bins.starts).cpu().numpy())
    filled = np.concatenate(lengths)
    filled = filled[filled > 0]
    percentiles = np.percentile(filled, PERCENTILES) if filled.size else np.zeros(len(PERCENTILES))
    return Drawing(
        gaussians=source.count,
        views=len(views),
        visible_share=float(np.mean(visible)),
        tile_instances=float(np.mean(instances)),
        list_lengths=tuple(float(value) for value in percentiles),
        saturated_share=float(np.mean(saturated)),
    )


def _project(
    source: GaussianSource, whole: torch.Tensor | None, camera: Camera, kernels: KernelSet, workspace: Workspace
) -> Splats:
    """Splats of the view, from all Gaussians at once where they are in memory, else piece by piece."""
    if whole is not None:
        ids = torch.arange(source.count, dtype=torch.int64, device=kernels.device)
        return project(kernels, whole, ids, camera, SH_DEGREE, workspace)
    pieces = []
    for lo in range(0, source.count, PIECE):
        hi = min(lo + PIECE, source.count)
        ids = torch.arange(lo, hi, dtype=torch.int64, device=kernels.device)
        piece = project(kernels, _read(source, lo, hi, kernels), ids, camera, SH_DEGREE, workspace)
        # The next piece writes into the same workspace.
        pieces.append(Splats(piece.rows + lo, piece.ids.clone(), piece.records.clone()))
    return Splats(
        torch.cat([piece.rows for piece in pieces]),
        torch.cat([piece.ids for piece in pieces]),
        torch.cat([piece.records for piece in pieces]),
    )


def _read(source: GaussianSource, lo: int, hi: int, kernels: KernelSet) -> torch.Tensor:
    indices = torch.arange(lo, hi, dtype=torch.int64)
    return source.read(indices, kernels.device).to(kernels.dtype)
