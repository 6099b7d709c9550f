"""Named sets of the small choices in which 3DGS code bases differ.

Comparison against an independent oracle fails on these before it fails on anything else, so each has a name
and one place. Values are those of mechanisms shared by all strategies; a convention is a frozen record.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """How alpha, transmittance and the projection are cut off.

    alpha_max: cap of a splat's alpha. alpha_min: below it a splat is skipped at that pixel.
    clamp_gradient: True passes the gradient through the cap, False makes it zero there.
    stop_inclusive: the stop test is `T <= t_stop` instead of `T < t_stop`.
    near: view depth below which a Gaussian is culled, world units.
    dilation: added to the diagonal of the 2-D covariance, square pixels.
    jacobian_margin: the projection's Jacobian is evaluated at most this share of the field of view's tangent
    beyond the image border (Kerbl et al. 2023, released code: 1.3 tan(fov/2) = 0.3 beyond the border).
    """

    name: str
    alpha_max: float = 0.99
    alpha_min: float = 1.0 / 255.0
    clamp_gradient: bool = False
    stop_inclusive: bool = False
    near: float = 0.2
    dilation: float = 0.3
    jacobian_margin: float = 0.3


CONVENTIONS = {
    c.name: c
    for c in (
        Convention("standard"),
        Convention("inria", clamp_gradient=True),
        Convention("gsplat153", alpha_max=0.999, stop_inclusive=True, near=0.01),
    )
}

T_STOP = 1e-4
"""Compositing stops before the splat that would bring transmittance below this; it is not blended."""

T_STOP_FLOOR = 1e-20
"""What `t_stop: 0` means: with no stop at all float32 transmittance underflows and T / (1 - alpha) is lost."""
