"""Kernel sets: what they refuse and what their settings mean."""

from __future__ import annotations

import pytest
import torch

from cuda_src.conventions import CONVENTIONS, T_STOP, T_STOP_FLOOR
from cuda_src.operators import KernelSet

OPERATORS = (
    "project",
    "bin_splats",
    "raster_forward",
    "raster_backward",
    "l1_ssim",
    "project_backward",
    "adam_rows",
    "densification_statistics",
    "pack_rows",
    "unpack_rows",
)


def test_float64_is_refused_but_for_the_reference():
    assert KernelSet("reference", precision="float64").dtype == torch.float64
    with pytest.raises(ValueError, match="float64 needs the reference back end, not portable"):
        KernelSet("portable", precision="float64")


def test_stopping_at_zero_means_the_floor():
    assert KernelSet().stop == T_STOP
    assert KernelSet(t_stop=0.0).stop == T_STOP_FLOOR


def test_conventions_carry_their_own_names():
    assert {name: convention.name for name, convention in CONVENTIONS.items()} == {n: n for n in CONVENTIONS}


def test_every_back_end_has_every_operator(backend):
    module = KernelSet(backend).module
    assert [name for name in OPERATORS if not callable(getattr(module, name, None))] == []
