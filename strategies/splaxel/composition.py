"""Partial images become one, front to back, and its gradient becomes theirs.

A partial image m has at each pixel a colour C_m, a transmittance T_m and whether its compositing stopped. With
A_m the product of T_k over those in front, C = sum A_m C_m + A_end background. A stopped partial never lets T below
the stop, so nothing behind it is composited, and the background gets T as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Partials:
    """Partial images of the same P pixels, G of them. All in one order, front to back unless `order_by_depth`.

    colour: [G, P, 3]. transmittance: [G, P]. stopped: [G, P] bool. depth: [G, P], sum of T alpha z, or None.
    """

    colour: torch.Tensor
    transmittance: torch.Tensor
    stopped: torch.Tensor
    depth: torch.Tensor | None = None


@dataclass(frozen=True)
class Composite:
    """What `composite` leaves: colour [P, 3] without background, transmittance [P], stopped [P] bool, depth or None.

    reach: [G, P], A_m: the share of light that reaches partial m; zero behind a stopped one. order: [G, P] int64,
    which partial comes in which place at each pixel, or None where they come as they are.
    """

    partials: Partials
    colour: torch.Tensor
    transmittance: torch.Tensor
    stopped: torch.Tensor
    depth: torch.Tensor | None
    reach: torch.Tensor
    order: torch.Tensor | None


def composite(partials: Partials, order_by_depth: bool = False) -> Composite:
    """Composite front to back. order_by_depth: by each partial's mean depth at the pixel, equal ones as they are."""
    if len(partials.colour) == 1:
        return _alone(partials)
    order = None
    if order_by_depth:
        order = _by_mean_depth(partials)
        partials = _permuted(partials, order)
    reach, behind, through = _light(partials)
    colour = (reach[..., None] * partials.colour).sum(dim=0)
    depth = None if partials.depth is None else (reach * partials.depth).sum(dim=0)
    return Composite(partials, colour, through, behind, depth, reach, order)


def _alone(partials: Partials) -> Composite:
    """The only partial image is the composite, and all light reaches it."""
    depth = None if partials.depth is None else partials.depth[0]
    reach = torch.ones_like(partials.transmittance)
    colour, transmittance, stopped = partials.colour[0], partials.transmittance[0], partials.stopped[0]
    return Composite(partials, colour, transmittance, stopped, depth, reach, None)


def light_in_front(transmittance: torch.Tensor, stopped: torch.Tensor) -> torch.Tensor:
    """A_m of partials in order, [G, P]: the product of T over those in front, zero behind a stopped one."""
    reach = torch.ones_like(transmittance)
    for m in range(1, len(transmittance)):
        torch.mul(reach[m - 1], transmittance[m - 1], out=reach[m]).masked_fill_(stopped[m - 1], 0.0)
    return reach


def _light(partials: Partials) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A_m [G, P]; whether compositing stopped [P]; and what is left for the background [P]."""
    transmittance, every_stop = partials.transmittance, partials.stopped
    reach = light_in_front(transmittance, every_stop)
    if not len(transmittance):
        nothing = every_stop.new_zeros(every_stop.shape[1])
        return reach, nothing, torch.ones_like(nothing, dtype=transmittance.dtype)
    through, stopped = transmittance[0], every_stop[0]
    for t, s in zip(transmittance[1:], every_stop[1:], strict=True):
        through = torch.where(stopped, through, through * t)
        stopped = stopped | s
    return reach, stopped, through


def composite_backward(
    result: Composite, grad_colour: torch.Tensor, grad_transmittance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of each partial's colour [G, P, 3] and transmittance [G, P], in the order the partials were given.

    grad_colour [P, 3] and grad_transmittance [P] are those of the composite. dL/dC_m = A_m dL/dC, and dL/dT_m = A_m r_m
    where r_m = <S_m, dL/dC> is the worth of what lies behind m: r_m = <C_{m+1}, dL/dC> + T_{m+1} r_{m+1}, beginning
    behind the last, or right behind a stopped one, with the composite's own grad_transmittance.
    """
    partials = result.partials
    if len(partials.colour) == 1:
        return grad_colour[None], grad_transmittance[None]
    worth = [grad_transmittance] * len(partials.transmittance)
    for m in reversed(range(1, len(worth))):
        behind = (partials.colour[m] * grad_colour).sum(dim=1) + partials.transmittance[m] * worth[m]
        worth[m - 1] = torch.where(partials.stopped[m - 1], grad_transmittance, behind)
    to_transmittance = result.reach * torch.stack(worth) if worth else torch.empty_like(result.reach)
    to_colour = result.reach[..., None] * grad_colour
    if result.order is None:
        return to_colour, to_transmittance
    back_colour, back_transmittance = torch.empty_like(to_colour), torch.empty_like(to_transmittance)
    back_colour.scatter_(0, result.order[..., None].expand_as(to_colour), to_colour)
    back_transmittance.scatter_(0, result.order, to_transmittance)
    return back_colour, back_transmittance


def _by_mean_depth(partials: Partials) -> torch.Tensor:
    """Order of the partials at each pixel by sum(T alpha z) / (1 - T), [G, P]; empty ones do nothing, last."""
    assert partials.depth is not None
    weight = 1 - partials.transmittance
    mean = torch.where(weight > 0, partials.depth / torch.where(weight > 0, weight, 1), torch.inf)
    return torch.argsort(mean, dim=0, stable=True)


def _permuted(partials: Partials, order: torch.Tensor) -> Partials:
    return Partials(
        partials.colour.gather(0, order[..., None].expand_as(partials.colour)),
        partials.transmittance.gather(0, order),
        partials.stopped.gather(0, order),
        None if partials.depth is None else partials.depth.gather(0, order),
    )
