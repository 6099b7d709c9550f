"""A hash of what was trained, by which two runs are told to be equal to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch

from strategies.base import Shard


def shards_digest(shards: Iterable[Shard]) -> bytes:
    """SHA-256 of a rank's Gaussians as they lie: ids [n] int64, parameters and both moments [n, 59], piece by piece."""
    digest = hashlib.sha256()
    for shard in shards:
        for table in (shard.ids, shard.parameters, shard.moment1, shard.moment2):
            digest.update(np.ascontiguousarray(table.detach().cpu().numpy()).data)
    return digest.digest()


def as_tensor(digest: bytes) -> torch.Tensor:
    """The digest's bytes, [32] float64, in the form in which ranks exchange numbers."""
    return torch.tensor(list(digest), dtype=torch.float64)


def joined(digests: torch.Tensor) -> str:
    """SHA-256, hexadecimal, of the digests of all ranks in order; digests: [ranks, 32] as of `as_tensor`."""
    return hashlib.sha256(bytes(int(byte) for byte in digests.flatten().tolist())).hexdigest()
