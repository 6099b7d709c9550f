"""What kernels are told of a camera and a convention; no GPU needed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cuda_src.camera import Camera
from cuda_src.compiled.view import view_of
from cuda_src.conventions import CONVENTIONS, T_STOP_FLOOR
from cuda_src.operators import KernelSet


def camera() -> Camera:
    pose = np.eye(4)
    pose[:3, 3] = [1.0, 2.0, 3.0]
    return Camera(50, 33, 40.0, 42.0, 20.0, 15.0, pose, far=90.0)


def kernels(convention: str = "standard", **settings: object) -> KernelSet:
    return KernelSet("compiled", convention=CONVENTIONS[convention], **settings)  # type: ignore[arg-type]


def test_the_camera_is_carried_over():
    view = view_of(kernels(), camera())
    assert list(view.rotation) == np.eye(3).ravel().tolist()
    assert list(view.centre) == [-1.0, -2.0, -3.0]
    assert (view.fx, view.fy, view.cx, view.cy) == (40.0, 42.0, 20.0, 15.0)
    assert (view.width, view.height, view.tiles_x, view.tiles_y) == (50, 33, 4, 3)
    assert view.far_plane == 90.0


@pytest.mark.parametrize(("convention", "past_clamp"), [("standard", 0.99), ("inria", math.inf), ("gsplat153", 0.999)])
def test_a_clamped_gradient_is_a_threshold_of_the_density(convention, past_clamp):
    assert view_of(kernels(convention), camera()).past_clamp == pytest.approx(past_clamp)


def test_an_inclusive_stop_is_the_next_number_above_it():
    exclusive, inclusive = (np.float32(view_of(kernels(c), camera()).stop) for c in ("standard", "gsplat153"))
    assert exclusive == np.float32(1e-4)
    assert inclusive == np.nextafter(np.float32(1e-4), np.float32(1))


def test_footprint_and_a_stop_at_zero_are_told():
    assert view_of(kernels(footprint="square"), camera()).square == 1
    assert view_of(kernels(), camera()).square == 0
    assert view_of(kernels(t_stop=0.0), camera()).stop == pytest.approx(T_STOP_FLOOR)


def test_a_camera_under_a_kernel_set_has_one_view_however_often_it_is_asked_for():
    one, other, own = kernels(), kernels("inria"), camera()
    view = view_of(one, own)
    assert view_of(one, own) is view
    assert view_of(other, own) is not view
    assert view_of(one, camera()) is not view
    assert {view: 1}[view_of(one, own)] == 1
