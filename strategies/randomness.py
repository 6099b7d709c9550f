"""Counter-based randomness: a number is a function of its keys, so it depends on neither ranks nor order.

The generator is SplitMix64's finaliser (Steele, Lea, Flood 2014) over the keys, in int64 tensor arithmetic (which
wraps), so the same bits come out on every device.
"""

from __future__ import annotations

import math

import torch

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def bits(seed: int, stream: int, counters: torch.Tensor) -> torch.Tensor:
    """64 random bits for each counter, int64 of the counters' shape and device.

    seed: of the job. stream: what the number is for; different streams are independent. counters: int64, for
    instance stable Gaussian ids.
    """
    key = _mix(torch.tensor([seed], dtype=torch.int64) * _GOLDEN + stream)
    key = _mix(key + _GOLDEN).to(counters.device)
    return _mix(_mix(counters * _GOLDEN + key) + _GOLDEN)


def uniform(seed: int, stream: int, counters: torch.Tensor) -> torch.Tensor:
    """Uniform in [0, 1), float32 (24 bits) of the counters' shape and device."""
    return _shift(bits(seed, stream, counters), 40).to(torch.float32) * (1.0 / (1 << 24))


def normal(seed: int, stream: int, counters: torch.Tensor) -> torch.Tensor:
    """Standard normal, float32, by Box and Muller from the counter's 64 bits (two 24-bit uniforms).

    Computed in float64 and rounded: float32 logarithms and cosines differ in the last bit between a vector register
    and its tail, and so would depend on which counters are asked for together.
    """
    raw = bits(seed, stream, counters)
    u = (_shift(raw, 40).to(torch.float64) + 1.0) * (1.0 / (1 << 24))
    v = (_shift(raw, 8) & 0xFFFFFF).to(torch.float64) * (1.0 / (1 << 24))
    return (torch.sqrt(-2.0 * torch.log(u)) * torch.cos((2.0 * math.pi) * v)).to(torch.float32)


def permutation(seed: int, stream: int, n: int) -> torch.Tensor:
    """A permutation of 0..n-1, int64 on the CPU."""
    counters = torch.arange(n, dtype=torch.int64)
    return torch.argsort(bits(seed, stream, counters), stable=True)
