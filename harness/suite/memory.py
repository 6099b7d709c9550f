"""How much memory a rank of a cell will need, predicted from counts alone.

    parameters and two moments   Gaussians x 59 x 4 B x 3
    workspaces                   Gaussians x 64 B + pixels x batch x 200 B
    images                       pixels x batch x 3 B

The Gaussians' part is shared by the ranks; pixels are counted whole on each, an upper bound. Ranks of the engine
`virtual` lie on one device, which holds what all of them need. 64 B a Gaussian: ids, a splat's record and its place
among the tiles. 200 B a pixel: image, transmittance, depth, loss gradients with their SSIM maps, and the tile instances
of an ordinary view.
"""

from __future__ import annotations

import struct
from itertools import islice
from pathlib import Path

from harness.suite.cell import Cell, SceneSpec

PARAMETERS = 59
"""Floats a Gaussian, as in cuda_src/layout.py, which cannot be asked here: it may import torch."""
STATE_BYTES = PARAMETERS * 4 * 3
GAUSSIAN_WORKSPACE_BYTES = 64
PIXEL_WORKSPACE_BYTES = 200
PIXEL_IMAGE_BYTES = 3
_POINT_FILES = ("sparse/0/points3D", "sparse/points3D", "points3D")
_HEADER_LINES = 64


def predicted_bytes(cell: Cell, prepared_gaussians: int | None = None) -> int | None:
    """Bytes a device: of a rank, of engine `virtual` of all ranks; None where the scene does not say its number of
    Gaussians or pixels.

    prepared_gaussians: of the preparation that the cell starts from.
    """
    gaussians = gaussian_count(cell.scene, cell.scenario)
    if cell.from_:
        copies = cell.scene.tile[0] * cell.scene.tile[1]
        gaussians = None if prepared_gaussians is None else prepared_gaussians * copies
    if gaussians is None or cell.size is None:
        return None
    pixels = cell.size[0] * cell.size[1] * cell.batch
    shared = gaussians * (STATE_BYTES + GAUSSIAN_WORKSPACE_BYTES)
    of_rank = -(-shared // cell.ranks) + pixels * (PIXEL_WORKSPACE_BYTES + PIXEL_IMAGE_BYTES)
    return of_rank * cell.ranks if cell.engine == "virtual" else of_rank


def gaussian_count(scene: SceneSpec, scenario: str) -> int | None:
    """Gaussians that a cell on this scene starts with; None where the scene does not say."""
    tiles = scene.tile[0] * scene.tile[1]
    if scene.model is not None:
        count = _ply_count(Path(scene.model))
        return None if count is None else count * tiles
    if scene.city is not None:
        count = _city_count(scene, scenario)
    else:
        count = _photo_count(Path(scene.path or ""))
        count = scene.points or count
        if count is not None and scene.gaussians is not None:
            count = min(count, scene.gaussians)
    return None if count is None else count * tiles


def _city_count(scene: SceneSpec, scenario: str) -> int | None:
    from harness.scenes.presets import PRESETS

    preset = PRESETS[scene.city or ""]
    if scenario == "train":
        return preset.points and (scene.points or preset.points)
    return scene.gaussians or preset.gaussians


def _photo_count(folder: Path) -> int | None:
    """Points of a COLMAP model: the count that points3D.bin starts with, or that of points3D.txt's header."""
    for stem in _POINT_FILES:
        binary, text = folder / f"{stem}.bin", folder / f"{stem}.txt"
        if binary.is_file():
            with binary.open("rb") as file:
                header = file.read(8)
            return struct.unpack("<Q", header)[0] if len(header) == 8 else None
        if text.is_file():
            with text.open(encoding="utf-8", errors="replace") as file:
                return sum(1 for line in file if line.strip() and not line.startswith("#"))
    return None


def _ply_count(file: Path) -> int | None:
    """Vertices that a PLY's header announces."""
    if not file.is_file():
        return None
    with file.open("rb") as stream:
        for line in islice(stream, _HEADER_LINES * 4):
            words = line.split()
            if words[:2] == [b"element", b"vertex"] and len(words) == 3 and words[2].isdigit():
                return int(words[2])
            if words == [b"end_header"]:
                break
    return None
