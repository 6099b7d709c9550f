"""pack_rows and unpack_rows of every back end: every bit arrives where it should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.operators import KernelSet
from cuda_src.packing import id_words, pack_rows, packed_width, unpack_rows


def tables(generator: torch.Generator, count: int, columns: list[int]) -> list[torch.Tensor]:
    """Every bit pattern that float32 has, infinities and signalling not-a-numbers among them."""
    shapes = [(count, c) for c in columns]
    low, high = -(2**31), 2**31
    return [torch.randint(low, high, s, generator=generator, dtype=torch.int32).view(torch.float32) for s in shapes]


def bits(real: torch.Tensor) -> torch.Tensor:
    return real.view(torch.int32)


@settings(max_examples=25, deadline=None)
@given(
    count=st.sampled_from([1, 5, 33, 200]),
    share=st.floats(0, 1),
    columns=st.lists(st.sampled_from([1, 3, 31, 32, 33, 59, 64, 65]), min_size=1, max_size=5),
    seed=st.integers(0, 999),
)
def test_rows_come_back_bit_by_bit_at_other_places(backend, count, share, columns, seed):
    kernels = KernelSet(backend)
    generator = torch.Generator().manual_seed(seed)
    own = tables(generator, count, columns)
    ids = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    rows = torch.randperm(count, generator=generator)[: round(share * count)]
    packed = torch.full((len(rows), packed_width(own)), 0.5)
    pack_rows(kernels, ids, own, rows, packed)
    assert torch.equal(bits(packed[:, :-2].contiguous()), torch.cat([bits(t)[rows] for t in own], dim=1))

    places = torch.randperm(count + 7, generator=generator)[: len(rows)]
    new_ids = torch.full((count + 7,), -1)
    new = [torch.full((count + 7, c), 0.25) for c in columns]
    unpack_rows(kernels, packed, new_ids, new, places)
    assert torch.equal(new_ids[places], ids[rows])
    for there, here in zip(new, own, strict=True):
        assert torch.equal(bits(there)[places], bits(here)[rows])
    others = torch.ones(count + 7, dtype=torch.bool)
    others[places] = False
    assert (new_ids[others] == -1).all()
    assert all((table[others] == 0.25).all() for table in new)


def test_an_id_fills_two_words_of_float32_low_word_first(backend):
    packed = torch.zeros(1, 3)
    pack_rows(KernelSet(backend), torch.tensor([0x1122334455667788]), [torch.ones(1, 1)], torch.tensor([0]), packed)
    assert bits(packed)[0, 1:].tolist() == [0x55667788, 0x11223344]
    assert packed[0, 0] == 1


def test_an_id_fills_one_word_of_float64():
    kernels = KernelSet("reference", precision="float64")
    ids, table = torch.tensor([-(2**63), 2**53 + 1, -1]), torch.rand(3, 4, dtype=torch.float64)
    assert id_words(torch.float64) == 1
    packed = torch.zeros(3, packed_width([table]), dtype=torch.float64)
    rows = torch.tensor([2, 0, 1])
    pack_rows(kernels, ids, [table], rows, packed)
    new_ids, new = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4, dtype=torch.float64)
    unpack_rows(kernels, packed, new_ids, [new], rows)
    assert torch.equal(new_ids, ids)
    assert torch.equal(new, table)


@pytest.mark.parametrize("shape", [(2, 6), (3, 5), (3, 7)])
def test_a_buffer_of_another_shape_is_refused(shape):
    own, rows = [torch.zeros(4, 4)], torch.arange(3)
    with pytest.raises(ValueError, match=r"expected contiguous packed rows \(3, 6\)"):
        pack_rows(KernelSet("reference"), torch.arange(4), own, rows, torch.zeros(shape))
    with pytest.raises(ValueError, match=r"expected contiguous packed rows \(3, 6\)"):
        unpack_rows(KernelSet("reference"), torch.zeros(6, 3).t(), torch.arange(4), own, rows)


@pytest.mark.parametrize("count", [0, 9])
def test_too_many_tables_are_refused(count):
    with pytest.raises(ValueError, match=f"expected 1 to 8 tables, got {count}"):
        pack_rows(
            KernelSet("reference"), torch.arange(1), [torch.zeros(1, 1)] * count, torch.arange(1), torch.zeros(1, 9)
        )
