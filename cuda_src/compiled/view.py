"""What kernels know of a camera, a convention and a footprint: one struct of plain numbers.

Conventions are numbers in this struct and not template instantiations: each is a threshold that a kernel compares with
in any case, read from the constant bank at no cost, and one instantiation of each kernel builds in seconds. The two
that are choices become thresholds too: `clamp_gradient` by the largest density that still gets a gradient, and
`stop_inclusive` by the next float32 above the stop, since x <= s is x < next(s).
"""

from __future__ import annotations

import ctypes
import math

import numpy as np

from cuda_src.camera import Camera
from cuda_src.operators import KernelSet

_KEPT = 4096
"""Views kept ready: a step asks several times for that of its camera."""


class View(ctypes.Structure):
    """Passed to kernels by value; the same struct in C++ is generated from these fields."""

    _fields_ = (
        ("rotation", ctypes.c_float * 9),  # world to camera, row-major
        ("centre", ctypes.c_float * 3),  # of the camera, world units
        ("fx", ctypes.c_float),
        ("fy", ctypes.c_float),
        ("cx", ctypes.c_float),
        ("cy", ctypes.c_float),
        ("bounds", ctypes.c_float * 4),  # least and largest x/z, y/z at which the Jacobian is evaluated
        ("near_plane", ctypes.c_float),
        ("far_plane", ctypes.c_float),
        ("dilation", ctypes.c_float),
        ("alpha_min", ctypes.c_float),
        ("alpha_max", ctypes.c_float),
        ("past_clamp", ctypes.c_float),  # largest opacity exp(-sigma) that still gets a gradient
        ("stop", ctypes.c_float),  # compositing stops where transmittance would fall below this
        ("square", ctypes.c_int),  # footprint: square in the place of ellipse
        ("width", ctypes.c_int),
        ("height", ctypes.c_int),
        ("tiles_x", ctypes.c_int),
        ("tiles_y", ctypes.c_int),
    )
    __hash__ = object.__hash__  # By identity, as views are compared: `view_of` gives the same one every time.


_VIEWS: dict[tuple[Camera, int], tuple[KernelSet, View]] = {}


def view_of(kernels: KernelSet, camera: Camera) -> View:
    """The struct for one camera under the kernel set's convention, footprint and stop, the same object every time.

    Kernels only read it.
    """
    # By identity: a hash of a kernel set and its convention takes longer than the rest. What is kept keeps its id.
    key = camera, id(kernels)
    found = _VIEWS.get(key)
    if found is None:
        if len(_VIEWS) >= _KEPT:
            _VIEWS.clear()
        found = _VIEWS[key] = kernels, _made(kernels, camera)
    return found[1]


def _made(kernels: KernelSet, camera: Camera) -> View:
    convention = kernels.convention
    bounds: list[float] = []
    for focal, principal, size in ((camera.fx, camera.cx, camera.width), (camera.fy, camera.cy, camera.height)):
        margin = convention.jacobian_margin * 0.5 * size / focal
        bounds += [-principal / focal - margin, (size - principal) / focal + margin]
    stop = np.float32(kernels.stop)
    if convention.stop_inclusive:
        stop = np.nextafter(stop, np.float32(np.inf))
    view = View(
        fx=camera.fx,
        fy=camera.fy,
        cx=camera.cx,
        cy=camera.cy,
        near_plane=convention.near,
        far_plane=camera.far,
        dilation=convention.dilation,
        alpha_min=convention.alpha_min,
        alpha_max=convention.alpha_max,
        past_clamp=math.inf if convention.clamp_gradient else convention.alpha_max,
        stop=stop,
        square=kernels.footprint == "square",
        width=camera.width,
        height=camera.height,
        tiles_x=camera.tiles_x,
        tiles_y=camera.tiles_y,
    )
    view.rotation[:] = camera.world_to_camera[:3, :3].ravel().tolist()
    view.centre[:] = camera.centre.tolist()
    view.bounds[:] = bounds
    return view
