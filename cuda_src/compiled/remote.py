"""add_to_owners: what the kernel of remote.cu is given; see cuda_src/exchange.py."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from cuda_src.compiled.bindings import address, call, count
from cuda_src.compiled.exchange import rows_of
from cuda_src.exchange import MOST_RANKS
from cuda_src.layout import ACCUMULATOR_STRIDE, GRADIENT_STRIDE
from cuda_src.operators import KernelSet


class Owners(ctypes.Structure):
    """The same struct as in remote.cu."""

    _fields_ = (("ends", ctypes.c_int64 * MOST_RANKS), ("accumulators", ctypes.c_void_p * MOST_RANKS))


def add_to_owners(
    kernels: KernelSet,
    gradients: torch.Tensor,
    slots: torch.Tensor,
    walked: torch.Tensor,
    accumulators: Sequence[torch.Tensor],
) -> None:
    """See `cuda_src.exchange.add_to_owners`. In no fixed order: the same bits only where a slot has one instance."""
    if len(slots) == 0:
        return
    owners, end = Owners(), 0
    for number, rows in enumerate(accumulators):
        if rows.dtype != torch.float32 or rows.shape[1:] != (ACCUMULATOR_STRIDE,):
            raise ValueError(f"expected float32 accumulators [n, {ACCUMULATOR_STRIDE}], got {rows.dtype}, {rows.shape}")
        end += len(rows)
        owners.ends[number], owners.accumulators[number] = end, address(rows)
    given = ctypes.c_void_p(rows_of(gradients, GRADIENT_STRIDE))
    call("add_to_owners", gradients.device, given, slots, walked, count(len(slots)), ctypes.byref(owners))
