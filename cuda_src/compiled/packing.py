"""pack_rows and unpack_rows: what the kernel of packing.cu is given."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from cuda_src.compiled.bindings import address, call, count
from cuda_src.operators import KernelSet
from cuda_src.packing import MOST_TABLES, packed_width


class PackedTables(ctypes.Structure):
    """The same struct as in packing.cu."""

    _fields_ = (
        ("data", ctypes.c_void_p * MOST_TABLES),
        ("columns", ctypes.c_int * MOST_TABLES),
        ("count", ctypes.c_int),
        ("width", ctypes.c_int),
    )

    @classmethod
    def of(cls, tables: Sequence[torch.Tensor]) -> PackedTables:
        """Their addresses; ValueError for a table that is not float32."""
        if wrong := [table.dtype for table in tables if table.dtype != torch.float32]:
            raise ValueError(f"compiled kernels pack float32 tables, not {wrong[0]}")
        packed = cls(count=len(tables), width=packed_width(tables))
        packed.data[: len(tables)] = [address(table) for table in tables]
        packed.columns[: len(tables)] = [table.shape[1] for table in tables]
        return packed


def pack_rows(
    kernels: KernelSet, ids: torch.Tensor, tables: Sequence[torch.Tensor], rows: torch.Tensor, out: torch.Tensor
) -> None:
    """See `cuda_src.packing.pack_rows`."""
    call(
        "pack_rows", ids.device, ctypes.byref(PackedTables.of(tables)), ids, rows.contiguous(), count(len(rows)), out
    )  # fmt: skip


def unpack_rows(
    kernels: KernelSet, packed: torch.Tensor, ids: torch.Tensor, tables: Sequence[torch.Tensor], places: torch.Tensor
) -> None:
    """See `cuda_src.packing.unpack_rows`."""
    call(
        "unpack_rows", ids.device, ctypes.byref(PackedTables.of(tables)), ids, places.contiguous(),
        count(len(places)), packed,
    )  # fmt: skip
