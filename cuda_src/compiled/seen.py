"""A view's splats and the gradient by each, as the kernels that carry it back to Gaussians are given them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from cuda_src import layout
from cuda_src.compiled.bindings import address
from cuda_src.operators import Splats
from cuda_src.workspace import Workspace

ALIGNMENT = 16
"""Bytes of the words in which kernels copy tables, records and gradients."""


class SeenSplats(ctypes.Structure):
    """The same struct as Seen in differentiate.cuh."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("gradients", ctypes.c_void_p),
        ("live", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


@dataclass(frozen=True)
class SplatGradients:
    """Addresses and their number, in the order of SeenSplats, and the tensors that lie there."""

    key: tuple[int | None, ...]
    held: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, splats: Splats, gradients: torch.Tensor | None, name: str, workspace: Workspace) -> SplatGradients:
        """gradients: [V, GRADIENT]; None where they are given apart. name: of buffers for what has to be copied."""
        rows = splats.rows.contiguous()
        records = three_words(splats.records, f"{name}.records", workspace)
        by_record = None if gradients is None else three_words(gradients, f"{name}.by_record", workspace)
        there = None if by_record is None else by_record.data_ptr()
        key = address(rows), records.data_ptr(), there, address(splats.live), splats.count
        return cls(key, (rows, records, *(() if by_record is None else (by_record,))))

    @property
    def struct(self) -> SeenSplats:
        return SeenSplats(*self.key)


def three_words(values: torch.Tensor, name: str, workspace: Workspace) -> torch.Tensor:
    """Records or gradients [V, n] whose rows lie three words of 16 bytes apart, as kernels read them.

    What operators of this back end leave already does; others are copied into the workspace's buffer of that name.
    """
    stride = layout.RECORD_STRIDE
    if values.dtype == torch.float32 and values.stride() == (stride, 1) and values.data_ptr() % ALIGNMENT == 0:
        return values
    return workspace.take(name, (len(values), stride))[:, : values.shape[1]].copy_(values)
