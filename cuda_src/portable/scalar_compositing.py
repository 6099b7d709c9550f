"""Alpha of a splat at a pixel, one step of compositing, and its reverse (Kerbl et al. 2023, appendix C)."""

from __future__ import annotations

from cuda_src.portable.scalar import HALF, INFINITE, ONE, ZERO, exp_nonpositive, scalar


@scalar
def sigma_at(conic, dx, dy):
    """Exponent of the splat's Gaussian at an offset from its mean, pixels: (a dx^2 + c dy^2) / 2 + b dx dy."""
    a, b, c = conic
    return HALF * (a * dx * dx + c * dy * dy) + b * dx * dy


@scalar
def blend(transmittance, until, dx, dy, conic, opacity, depth, alpha_min, alpha_max, stop):
    """One splat over one pixel: (weight T alpha, transmittance after, until after).

    until is infinite while compositing goes on, and the depth of the splat that stopped it thereafter: the one that
    would bring transmittance below `stop`, which is not blended. All selects and no branches, so that a row of pixels
    vectorises.
    """
    sigma = sigma_at(conic, dx, dy)
    alpha = min(alpha_max, opacity * exp_nonpositive(-sigma))
    after = transmittance * (ONE - alpha)
    seen = (sigma >= ZERO) & (alpha >= alpha_min) & (until == INFINITE)
    stops = after < stop
    blended = seen & (not stops)
    weight = alpha * transmittance if blended else ZERO
    return weight, after if blended else transmittance, depth if seen & stops else until


@scalar
def record_gradient(conic, x, y, xx, xy, yy):
    """Gradient by the mean (two numbers) and by the conic (three), from moments of dL/dsigma over pixels.

    x, y, xx, xy, yy: sums of dL/dsigma times dx, dy, dx^2, dx dy, dy^2.
    """
    a, b, c = conic
    return -(a * x + b * y), -(b * x + c * y), HALF * xx, xy, HALF * yy


@scalar
def unblend(transmittance, behind, blended, dx, dy, conic, opacity, value, alpha_min, alpha_max, past_clamp):
    """Undo `blend` of one splat at one pixel: (T before it, behind, dL/dsigma, dL/d opacity, weight).

    behind: what is composited behind the splat, under the upstream gradient. value: the splat's own colour and
    depth under the upstream gradient. blended: False where the forward did not blend it. past_clamp: the largest
    opacity exp(-sigma) that still gets a gradient.
    """
    sigma = sigma_at(conic, dx, dy)
    falloff = exp_nonpositive(-sigma)
    density = opacity * falloff
    alpha = min(alpha_max, density)
    used = blended & (sigma >= ZERO) & (alpha >= alpha_min)
    inverse = ONE / (ONE - alpha)
    before = transmittance * inverse
    weight = alpha * before
    grad_density = before * value - behind * inverse
    moves = used & (density <= past_clamp)
    grad_density = grad_density if moves else ZERO
    weight = weight if used else ZERO
    return (
        before if used else transmittance,
        behind + weight * value,
        -density * grad_density,
        falloff * grad_density,
        weight,
    )
