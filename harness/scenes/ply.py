"""PLY files of points, and of Gaussians in the layout that 3DGS viewers read (Kerbl et al. 2023, released code)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from cuda_src.layout import LOG_SCALE, MEAN, OPACITY_LOGIT, PARAMETERS, QUATERNION, SH_DC, SH_REST
from harness.errors import UserError
from harness.scenes.ply_table import vertex_table
from strategies.base import Shard

PIECE = 1 << 18
"""Gaussians handled at once: about 60 MB."""

_COLOURS = 3
_REST = (SH_REST.stop - SH_REST.start) // _COLOURS
_REST_COUNTS = (0, 9, 24, 45)
"""f_rest properties of spherical harmonics of degree 0 to 3."""

_COLUMNS = {
    **{name: MEAN.start + i for i, name in enumerate(("x", "y", "z"))},
    **{f"f_dc_{i}": SH_DC.start + i for i in range(3)},
    "opacity": OPACITY_LOGIT,
    **{f"scale_{i}": LOG_SCALE.start + i for i in range(3)},
    **{f"rot_{i}": QUATERNION.start + i for i in range(4)},
}
"""Property -> parameter column, without f_rest."""


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Positions [P, 3] and colours [P, 3] uint8 of a PLY point cloud; grey where it has no colours."""
    table = vertex_table(path, ("x", "y", "z"))
    positions = np.stack([table[name] for name in ("x", "y", "z")], axis=1)
    names = ("red", "green", "blue")
    if not set(names) <= set(table.dtype.names or ()):
        return positions, np.full(positions.shape, 128, dtype=np.uint8)
    if any(table.dtype[name] != np.uint8 for name in names):
        raise UserError("colours are no uchar; expected property uchar red, green, blue", path)
    return positions, np.stack([table[name] for name in names], axis=1)


class GaussianFile:
    """GaussianSource of a Gaussian PLY: the file is mapped, rows are read when asked for.

    Spherical harmonics of a lower degree are filled up with zeros. Raises UserError when a property is missing, the
    file is cut short, or a number is not finite (the whole file is looked through once).
    """

    def __init__(self, path: Path):
        table = vertex_table(path, tuple(_COLUMNS))
        rest = sum(name.startswith("f_rest_") for name in table.dtype.names or ())
        if rest not in _REST_COUNTS or any(f"f_rest_{i}" not in (table.dtype.names or ()) for i in range(rest)):
            raise UserError(f"has {rest} f_rest properties; expected f_rest_0 to one of {_REST_COUNTS[1:]}", path)
        if len(table) == 0:
            raise UserError("holds no Gaussian", path)
        self._table = table
        self._columns = {**_COLUMNS, **rest_columns(rest // _COLOURS)}
        self._bounds = self._checked_bounds(path)

    @property
    def count(self) -> int:
        return len(self._table)

    @property
    def bounds(self) -> np.ndarray:
        return self._bounds

    def positions(self, lo: int, hi: int) -> torch.Tensor:
        """Means of ids lo:hi, [hi - lo, 3] float32 on the CPU."""
        table = self._table[lo:hi]
        return torch.from_numpy(np.stack([table[name].astype(np.float32) for name in ("x", "y", "z")], axis=1))

    def read(self, indices: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Parameters of those ids (int64), [n, 59] float32 on the device."""
        rows = indices.cpu().numpy()
        parameters = torch.empty((len(rows), PARAMETERS), dtype=torch.float32, device=device)
        for lo in range(0, len(rows), PIECE):
            parameters[lo : lo + PIECE] = torch.from_numpy(self._rows(rows[lo : lo + PIECE]))
        return parameters

    def _rows(self, rows: slice | np.ndarray) -> np.ndarray:
        table = self._table[rows]
        parameters = np.zeros((len(table), PARAMETERS), dtype=np.float32)
        with np.errstate(over="ignore"):
            for name, column in self._columns.items():
                parameters[:, column] = table[name]
        return parameters

    def _checked_bounds(self, path: Path) -> np.ndarray:
        lower, upper = np.full(3, np.inf, np.float32), np.full(3, -np.inf, np.float32)
        for lo in range(0, self.count, PIECE):
            parameters = self._rows(slice(lo, min(lo + PIECE, self.count)))
            bad = ~np.isfinite(parameters).all(axis=1)
            if bad.any():
                raise UserError(f"Gaussian {lo + int(np.argmax(bad)) + 1} holds a number that is not finite", path)
            lower = np.minimum(lower, parameters[:, MEAN].min(axis=0))
            upper = np.maximum(upper, parameters[:, MEAN].max(axis=0))
        return np.stack([lower, upper])


def rest_columns(coefficients: int) -> dict[str, int]:
    """Property f_rest_* -> parameter column, for so many coefficients a colour.

    The file is colour-major (f_rest_{colour * coefficients + k - 1}), parameters are coefficient-major.
    """
    return {
        f"f_rest_{colour * coefficients + k}": SH_REST.start + _COLOURS * k + colour
        for colour in range(_COLOURS)
        for k in range(coefficients)
    }


def read_gaussians(path: Path) -> GaussianFile:
    """The Gaussians of a PLY file; see GaussianFile."""
    return GaussianFile(path)


def write_gaussians(path: Path, shards: Iterator[Shard], count: int) -> None:
    """Write Gaussians, in the order the shards bring them, as a binary PLY that 3DGS viewers read.

    count: of all shards together; ValueError when they bring another number. The file appears whole or not at all.
    """
    columns = {**_COLUMNS, **rest_columns(_REST)}
    names = ["x", "y", "z", "nx", "ny", "nz", *(f"f_dc_{i}" for i in range(3))]
    names += [f"f_rest_{i}" for i in range(_COLOURS * _REST)]
    names += ["opacity", *(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    lines += [*(f"property float {name}" for name in names), "end_header", ""]
    targets = [i for i, name in enumerate(names) if name in columns]
    sources = [columns[name] for name in names if name in columns]
    partial = path.with_name(f".{path.name}.partial")
    written = 0
    try:
        with partial.open("wb") as stream:
            stream.write("\n".join(lines).encode("ascii"))
            for shard in shards:
                for piece in shard.parameters.split(PIECE):
                    block = np.zeros((len(piece), len(names)), dtype="<f4")
                    block[:, targets] = piece.cpu().numpy()[:, sources]
                    stream.write(block.tobytes())
                    written += len(piece)
            if written != count:
                raise ValueError(f"{written} Gaussians in the shards; {count} announced")
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
