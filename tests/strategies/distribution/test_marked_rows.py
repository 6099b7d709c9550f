"""Marked rows are counted and found as `nonzero` finds them, and on a GPU nobody waits for it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.exchange import SENT_GRADIENTS
from strategies.distribution.codec import nonzero_rows
from strategies.distribution.codec_bits import pack_bits, unpack_bits
from strategies.distribution.marked_rows import MarkedRows


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_marked_rows_are_those_that_nonzero_finds(lengths, share, seed):
    flags = torch.rand(sum(lengths), generator=torch.Generator().manual_seed(seed)) < share
    marked, expected = MarkedRows(flags, lengths), flags.nonzero()[:, 0]
    assert marked.counts.tolist() == [int(part.sum()) for part in flags.split(lengths)]
    assert torch.equal(marked.positions(len(expected)), expected)


@pytest.mark.gpu
def test_only_the_counts_make_the_host_wait(waits_are_errors):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    rows = torch.randn(100_000, SENT_GRADIENTS, device="cuda")
    rows[::3] = 0
    lengths, count = [20_001, 0, 79_999], len(rows) - len(rows[::3])
    with waits_are_errors():
        flags = nonzero_rows(rows)
        packed = pack_bits(flags, lengths)
        came = unpack_bits(packed, lengths)
        marked = MarkedRows(came, lengths)
        positions = marked.positions(count)
    assert torch.equal(packed.cpu(), pack_bits(flags.cpu(), lengths))
    assert torch.equal(came, flags)
    assert marked.counts.tolist() == [int(part.sum()) for part in flags.split(lengths)]
    assert torch.equal(positions, flags.nonzero()[:, 0])
