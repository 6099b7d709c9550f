"""Codecs deliver the gradients they are given, and their bytes are the closed form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src.exchange import SENT_GRADIENTS
from strategies.distribution.codec import CODECS, STAGE, Incoming, Outgoing, nonzero_rows
from strategies.distribution.codec_bits import bitmap_bytes, pack_bits, unpack_bits
from strategies.distribution.communicator import Communicator
from strategies.distribution.gaussian_exchange import BACKWARD_BYTES
from strategies.distribution.virtual import VirtualWorld

LOSSLESS = ["dense", "bitmap", "index"]
VIEWS = (7, 3)


def group_counts(rank: int, ranks: int, most: int, seed: int) -> torch.Tensor:
    """Rows that this rank sends in each group, [ranks, views]; the same wherever it is asked."""
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    return torch.randint(0, most + 1, (ranks, len(VIEWS)), generator=generator)


def outgoing_of(rank: int, counts: torch.Tensor, share: float, seed: int) -> Outgoing:
    """Random rows of which about `share` are exactly zero."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    rows = torch.randn(int(counts.sum()), SENT_GRADIENTS, generator=generator)
    rows[torch.rand(len(rows), generator=generator) < share] = 0
    ids = torch.arange(len(rows)) * 10 + rank
    return Outgoing(rows, counts.tolist(), VIEWS, ids)


def dense_rows(incoming: Incoming, count: int) -> torch.Tensor:
    """All awaited rows, those that were left out as zeros."""
    rows = incoming.rows.new_zeros((count, SENT_GRADIENTS))
    rows[slice(None) if incoming.positions is None else incoming.positions] = incoming.rows
    return rows


def exchange_all(codec: str, ranks: int, most: int, share: float, seed: int = 0):
    """By rank: what was sent, what came in place of the awaited rows, the awaited counts, the ledger."""

    def main(comm: Communicator):
        outgoing = outgoing_of(comm.rank, group_counts(comm.rank, ranks, most, seed), share, seed)
        awaited = torch.stack([group_counts(s, ranks, most, seed)[comm.rank] for s in range(ranks)])
        incoming = CODECS[codec]().send(comm, outgoing, awaited.tolist())()()
        assert incoming.positions is None or (incoming.positions.diff() > 0).all()
        return outgoing, dense_rows(incoming, int(awaited.sum())), comm.ledger

    return VirtualWorld(ranks).run(main)


def expected_rows(results, rank: int) -> torch.Tensor:
    """What every source sent to this rank, by source."""
    parts = []
    for outgoing, _, _ in results:
        parts.append(outgoing.rows.split(outgoing.by_destination)[rank])
    return torch.cat(parts)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("most", "share"),
    [(20, 1.0), (20, 0.0), (1, 0.0), (1, 1.0), (0, 0.0), (20, 0.7)],
    ids=["all zero", "none zero", "one record", "one zero record", "empty", "mixed"],
)
def test_round_trip_of_every_codec(codec, ranks, most, share):
    results = exchange_all(codec, ranks, most, share)
    for rank, (_, came, _) in enumerate(results):
        sent = expected_rows(results, rank)
        if codec == "bf16":
            sent = sent.to(torch.bfloat16).float()
        assert torch.equal(came, sent)


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(1, 4), most=st.integers(0, 30), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_lossless_codecs_deliver_what_dense_delivers(ranks, most, share, seed):
    dense = exchange_all("dense", ranks, most, share, seed)
    for codec in LOSSLESS[1:]:
        for (_, ours, _), (_, expected, _) in zip(exchange_all(codec, ranks, most, share, seed), dense, strict=True):
            assert torch.equal(ours, expected)


@pytest.mark.parametrize("codec", LOSSLESS)
def test_several_returns_are_under_way_at_once(codec):
    """All go on before the first is waited for, as those of a batch do."""
    ranks, seeds = 3, (0, 1, 2)

    def main(comm: Communicator):
        code, counts = CODECS[codec](), [group_counts(comm.rank, ranks, 20, seed) for seed in seeds]
        awaited = [torch.stack([group_counts(s, ranks, 20, seed)[comm.rank] for s in range(ranks)]) for seed in seeds]
        sends = [outgoing_of(comm.rank, n, 0.6, seed) for n, seed in zip(counts, seeds, strict=True)]
        leaving = [code.send(comm, one, due.tolist()) for one, due in zip(sends, awaited, strict=True)]
        arrivals = [proceed() for proceed in leaving]
        return [dense_rows(arrive(), int(due.sum())) for arrive, due in zip(arrivals, awaited, strict=True)]

    together = VirtualWorld(ranks).run(main)
    for number, seed in enumerate(seeds):
        alone = exchange_all(codec, ranks, 20, 0.6, seed)
        for rank in range(ranks):
            assert torch.equal(together[rank][number], alone[rank][1])


@settings(max_examples=15, deadline=None)
@given(ranks=st.integers(1, 4), most=st.integers(0, 40), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_payload_is_the_closed_form_of_each_pair(ranks, most, share, seed):
    for codec in CODECS:
        for rank, (outgoing, _, ledger) in enumerate(exchange_all(codec, ranks, most, share, seed)):
            kept = [int(part.sum()) for part in outgoing.nonzero.split(outgoing.by_destination)]
            for destination in range(ranks):
                groups = outgoing.counts[destination]
                expected = {
                    "dense": BACKWARD_BYTES * sum(groups),
                    "bitmap": BACKWARD_BYTES * kept[destination] + sum(map(bitmap_bytes, groups)),
                    "index": (BACKWARD_BYTES + 4) * kept[destination],
                    "bf16": BACKWARD_BYTES // 2 * sum(groups),
                }[codec]
                assert ledger.payload[STAGE][rank, destination] == expected


def test_bitmap_bytes_are_dense_less_zeros_and_one_bit_a_record_within_one_per_cent():
    """Bytes = dense (1 - z) + R / 8."""
    results = exchange_all("bitmap", 2, 4000, 0.6)
    records = sum(len(outgoing.rows) for outgoing, _, _ in results)
    zeros = sum(int((~outgoing.nonzero).sum()) for outgoing, _, _ in results)
    payload = sum(int(ledger.payload[STAGE].sum()) for _, _, ledger in results)
    closed = BACKWARD_BYTES * records * (1 - zeros / records) + records / 8
    assert payload == pytest.approx(closed, rel=0.01)
    assert payload < 0.5 * BACKWARD_BYTES * records


def test_bitmap_needs_no_counts_and_index_declares_its_own_as_metadata():
    for codec, expected in (("bitmap", 0), ("index", 8 * 3)):
        for rank, (_, _, ledger) in enumerate(exchange_all(codec, 3, 20, 0.5)):
            assert sum(int(t[rank].sum()) for t in ledger.metadata.values()) == expected


@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_bits_unpack_to_the_flags_they_were_packed_from(counts, seed):
    flags = torch.rand(sum(counts), generator=torch.Generator().manual_seed(seed)) < 0.5
    packed = pack_bits(flags, counts)
    assert len(packed) == sum(-(-n // 8) for n in counts)
    assert torch.equal(unpack_bits(packed, counts), flags)


def test_each_group_begins_a_byte_and_its_first_flag_is_the_lowest_bit():
    flags = torch.tensor([True, False, True, True])
    assert pack_bits(flags, [3, 1]).tolist() == [0b101, 0b1]


def test_a_record_that_is_not_a_number_is_sent():
    rows = torch.zeros(3, SENT_GRADIENTS)
    rows[1, 4] = float("nan")
    rows[2, 8] = -0.0
    assert nonzero_rows(rows).tolist() == [False, True, False]


def visit(codec, rows: torch.Tensor, ids: torch.Tensor, view: int = 5) -> torch.Tensor:
    """One rank sends these rows of a view to itself."""

    def main(comm: Communicator):
        counts = [[len(rows)]]
        return codec.send(comm, Outgoing(rows, counts, [view], ids), counts)()().rows

    return VirtualWorld(1).run(main)[0]


def test_error_feedback_sends_later_what_rounding_took_away():
    rows = torch.full((4, SENT_GRADIENTS), 1 + 2**-10)  # Halfway between nothing and a bfloat16's last bit.
    codec, ids, total = CODECS["bf16"](), torch.arange(4), torch.zeros(4, SENT_GRADIENTS)
    for number in range(64):
        # The order of records changes from visit to visit, as ranks and splats do.
        order = torch.randperm(4, generator=torch.Generator().manual_seed(number))
        total[order] += visit(codec, rows[order], ids[order])
    plain = 64 * rows.to(torch.bfloat16).float()
    assert (total - 64 * rows).abs().max() <= 2**-7
    assert (plain - 64 * rows).abs().min() > 2**-5


def test_only_error_feedback_holds_memory_between_calls():
    rows, ids = torch.ones(3, SENT_GRADIENTS), torch.arange(3)
    for name, kind in CODECS.items():
        codec = kind()
        visit(codec, rows, ids)
        assert codec.bytes == (3 * 8 + rows.numel() * 4 if name == "bf16" else 0)


def test_error_feedback_is_kept_by_view_and_gaussian_until_the_record_comes_again():
    rows = torch.full((1, SENT_GRADIENTS), 1 + 2**-8 + 2**-9)
    codec = CODECS["bf16"]()
    first = visit(codec, rows, torch.tensor([8]))
    visit(codec, rows, torch.tensor([9]))
    visit(codec, rows, torch.tensor([8]), view=6)
    again = visit(codec, torch.zeros_like(rows), torch.tensor([8]))
    assert torch.equal(first + again, rows)
    assert (visit(codec, torch.zeros_like(rows), torch.tensor([8])) == 0).all()
