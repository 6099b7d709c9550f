"""Partial images become the image that one pass over all splats would be, and its gradient becomes theirs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.splaxel.composition import Partials, composite, composite_backward


def partials(seed: int, count: int, pixels: int = 6, stopped: float = 0.2) -> Partials:
    g = torch.Generator().manual_seed(seed)
    return Partials(
        torch.rand(count, pixels, 3, generator=g, dtype=torch.float64),
        torch.rand(count, pixels, generator=g, dtype=torch.float64) * 0.9 + 0.05,
        torch.rand(count, pixels, generator=g) < stopped,
        torch.rand(count, pixels, generator=g, dtype=torch.float64),
    )


def plain(p: Partials, background: torch.Tensor) -> torch.Tensor:
    """The definition, pixel by pixel, differentiable."""
    rows = []
    for pixel in range(p.colour.shape[1]):
        colour, light = torch.zeros(3, dtype=torch.float64), torch.ones((), dtype=torch.float64)
        for m in range(len(p.colour)):
            colour = colour + light * p.colour[m, pixel]
            light = light * p.transmittance[m, pixel]
            if p.stopped[m, pixel]:
                break
        rows.append(colour + light * background)
    return torch.stack(rows)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), count=st.integers(1, 6))
def test_composite_and_its_gradient_equal_autograd_of_the_definition(seed, count):
    p = partials(seed, count)
    background = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    c = composite(p)
    p.colour.requires_grad_()
    p.transmittance.requires_grad_()
    expected = plain(p, background)
    assert torch.allclose(c.colour + c.transmittance[:, None] * background, expected, atol=1e-14)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    by_colour, by_transmittance = torch.autograd.grad(expected, (p.colour, p.transmittance), upstream)
    to_colour, to_transmittance = composite_backward(c, upstream, upstream @ background)
    assert torch.allclose(to_colour, by_colour, atol=1e-14)
    assert torch.allclose(to_transmittance, by_transmittance, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), cut=st.integers(1, 4))
def test_composing_in_two_levels_equals_composing_at_once(seed, cut):
    p = partials(seed, 5)
    parts = [
        Partials(*(t[s] for t in (p.colour, p.transmittance, p.stopped, p.depth)))
        for s in (slice(0, cut), slice(cut, 5))
    ]
    inner = [composite(part) for part in parts]
    outer = composite(
        Partials(
            *(torch.stack([getattr(c, n) for c in inner]) for n in ("colour", "transmittance", "stopped", "depth"))
        )
    )
    once = composite(p)
    for name in ("colour", "transmittance", "stopped", "depth"):
        assert torch.allclose(getattr(outer, name).double(), getattr(once, name).double(), atol=1e-14)
    grad_colour, grad_light = torch.rand(6, 3, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    expected = composite_backward(once, grad_colour, grad_light)
    to_colour, to_light = composite_backward(outer, grad_colour, grad_light)
    got = [composite_backward(c, to_colour[n], to_light[n]) for n, c in enumerate(inner)]
    for k in range(2):
        assert torch.allclose(torch.cat([g[k] for g in got]), expected[k], atol=1e-14)


def test_depth_order_sorts_each_pixel_by_mean_depth_and_returns_gradients_in_place():
    p = partials(1, 4, stopped=0.0)
    mean = torch.tensor([3.0, 1.0, 4.0, 2.0], dtype=torch.float64)[:, None].expand(4, 6)
    p = Partials(p.colour, p.transmittance, p.stopped, mean * (1 - p.transmittance))
    order = [1, 3, 0, 2]
    sorted_partials = Partials(*(t[order] for t in (p.colour, p.transmittance, p.stopped, p.depth)))
    by_depth, in_order = composite(p, order_by_depth=True), composite(sorted_partials)
    assert torch.equal(by_depth.colour, in_order.colour)
    grad_colour, grad_light = torch.rand(6, 3, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    for got, expected in zip(
        composite_backward(by_depth, grad_colour, grad_light),
        composite_backward(in_order, grad_colour, grad_light),
        strict=True,
    ):
        assert torch.equal(got[order], expected)


def test_nothing_composited_leaves_all_light_to_the_background():
    c = composite(Partials(torch.zeros(0, 5, 3), torch.ones(0, 5), torch.zeros(0, 5, dtype=torch.bool)))
    assert torch.equal(c.transmittance, torch.ones(5))
    assert not c.colour.any()
    assert composite_backward(c, torch.ones(5, 3), torch.ones(5))[0].shape == (0, 5, 3)
