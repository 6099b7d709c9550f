"""A view's passage between ranks: its records, its gradients, its counts, and what is done anew."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from cuda_src import exchange as ex
from cuda_src import operators as op
from cuda_src import reference
from cuda_src.layout import GRADIENT, RECORD, RECORD_STRIDE
from cuda_src.operators import KernelSet
from cuda_src.workspace import Workspace
from strategies.distribution.codec import CODECS
from strategies.distribution.communicator import Communicator
from strategies.distribution.gaussian_exchange import (
    BACKWARD_BYTES,
    FORWARD_BYTES,
    GaussianExchange,
    Passage,
)
from strategies.distribution.regions import Regions, cut_regions
from strategies.distribution.turns import Turns
from strategies.distribution.virtual import VirtualWorld


@pytest.fixture(params=["portable", "compiled"])
def kernels(request, monkeypatch) -> KernelSet:
    """Of either layout on the wire. The reference computes in that of compiled kernels, where nothing is unpacked."""
    if request.param == "compiled":
        stand_in = ModuleType("cuda_src.compiled")
        vars(stand_in).update({name: getattr(reference, name) for name in reference.__all__})
        stand_in.pack_records = pack_in_words
        del stand_in.unpack_records
        monkeypatch.setitem(sys.modules, "cuda_src.compiled", stand_in)
    return KernelSet(request.param)


def pack_in_words(kernels: KernelSet, splats: op.Splats, routing: ex.Routing, rank: int, wire: torch.Tensor) -> None:
    """Of an id's two words the lower one is all of it."""
    wide = wire.new_zeros((len(wire), RECORD + 2))
    reference.pack_records(kernels, splats, routing, rank, wide)
    wire[:, :RECORD_STRIDE] = wide[:, :RECORD_STRIDE]


@pytest.fixture
def make_passage(scene, kernels):
    """Builds a rank's passage of the first view, from the Gaussians whose id leaves the rank as a remainder."""
    camera = scene.cameras[0]

    def make(comm: Communicator, work: Workspace, codec: str = "dense") -> Passage:
        mine = torch.arange(scene.source.count)[comm.rank :: comm.ranks]
        splats = op.project(kernels, scene.source.parameters[mine], mine, camera, 3, work)
        splats = op.Splats(*(t.clone() for t in (splats.rows, splats.ids, splats.records)))
        (owners,) = regions_of(comm.ranks).owners(torch.device("cpu"))
        return Passage(GaussianExchange(comm, kernels, codec=codec), splats, camera, owners, work)

    def regions_of(ranks: int) -> Regions:
        return cut_regions([camera], [torch.ones(camera.tiles)], ranks, "block")

    return make, regions_of


def depart(passage: Passage) -> op.Splats:
    assert passage.fits
    passage.depart()
    return passage.arrive()


def all_records(scene, kernels: KernelSet, ranks: int, regions: Regions) -> list[dict[int, torch.Tensor]]:
    """By rank and id: the records that touch its tiles, from one projection of everything."""
    work, ids = Workspace(), torch.arange(scene.source.count)
    splats = op.project(kernels, scene.source.parameters, ids, scene.cameras[0], 3, work)
    bins = op.bin_splats(kernels, splats, scene.cameras[0], work)
    found: list[dict[int, torch.Tensor]] = [{} for _ in range(ranks)]
    tile = bins.tiles.long().repeat_interleave(bins.starts.diff())
    for rank, splat in zip(regions.owner(0)[tile].tolist(), bins.splat.tolist(), strict=True):
        found[rank][int(splats.ids[splat])] = splats.records[splat].clone()
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("wire", ["as it comes", "too short"])
def test_every_rank_gets_the_records_of_its_tiles_and_their_instances(
    scene, kernels, make_passage, ranks, wire, monkeypatch
):
    if wire == "too short":
        monkeypatch.setattr(Passage, "_pack", shortened(Passage._pack))
    make, regions_of = make_passage
    expected = all_records(scene, kernels, ranks, regions_of(ranks))

    def main(comm: Communicator):
        passage = make(comm, Workspace())
        splats = depart(passage)
        tiles = regions_of(ranks).of(comm.rank, 0)
        bins = op.bin_splats(kernels, splats, scene.cameras[0], Workspace(), tiles)
        assert passage.told.instances == bins.instances
        assert passage.told.visible == passage.needed == passage.splats.count
        return splats, comm.ledger

    for (splats, ledger), records in zip(VirtualWorld(ranks).run(main), expected, strict=True):
        assert sorted(splats.ids.tolist()) == sorted(records)
        for gaussian, record in zip(splats.ids.tolist(), splats.records, strict=True):
            assert torch.equal(record, records[gaussian])
        sent = ledger.payload["exchange_forward"] // FORWARD_BYTES
        counts, id_bytes = ranks * ex.ROUTE_COUNTS * 8, 4 if kernels.backend == "compiled" else 8
        assert torch.equal(ledger.metadata["exchange_forward"].sum(), (id_bytes * sent).sum() + counts * ranks)


def shortened(pack):
    """The first packing has room for three records."""

    def packed(self: Passage, rows: int) -> None:
        pack(self, rows if hasattr(self, "_wire") else 3)

    return packed


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_gradients_return_to_their_splat_and_sum_over_ranks(scene, kernels, make_passage, codec, ranks):
    """Each rank gives back, for the Gaussian of id i, (i + 1) times its own number + 1 in every column."""
    make, regions_of = make_passage
    touched = all_records(scene, kernels, ranks, regions_of(ranks))

    def main(comm: Communicator):
        passage = make(comm, Workspace(), codec)
        splats = depart(passage)
        gradients = ((splats.ids + 1) * (comm.rank + 1))[:, None].float().expand(-1, GRADIENT)
        passage.give_back(gradients, 0)
        passage.proceed()
        total, sums = passage.collect().clone(), passage.sums(gradients[:, :2].contiguous())
        return passage.splats.ids, total, sums, comm.ledger.payload["exchange_backward"]

    for rank, (ids, total, sums, payload) in enumerate(VirtualWorld(ranks).run(main)):
        expected = torch.zeros(len(ids))
        for other in range(ranks):
            expected += torch.tensor([(i + 1) * (other + 1) if i in touched[other] else 0 for i in ids.tolist()])
        assert torch.allclose(total[:, : ex.SENT_GRADIENTS], expected[:, None].expand(-1, 9), rtol=1e-2)
        assert (total[:, ex.SENT_GRADIENTS :] == 0).all()
        assert torch.equal(sums, expected[:, None].expand(-1, 2))
        if codec == "dense":
            assert torch.equal(total[:, 0], expected)
            assert payload[rank].sum() == BACKWARD_BYTES * len(touched[rank])


def test_zeros_are_counted_wherever_they_are_added_up(scene, make_passage):
    make, _ = make_passage

    def main(comm: Communicator, codec: str):
        passage = make(comm, Workspace(), codec)
        splats = depart(passage)
        gradients = torch.ones(splats.count, GRADIENT)
        gradients[splats.ids % 3 == 0] = 0
        passage.give_back(gradients, 0)
        passage.proceed()
        passage.collect()
        exchange = passage._exchange
        return exchange.zeros, exchange.records, int((splats.ids % 3 == 0).sum()), splats.count

    for codec in CODECS:
        every = torch.tensor(VirtualWorld(3).run(lambda comm, codec=codec: main(comm, codec)))
        zeros, records, expected, count = every.sum(0).tolist()
        assert (zeros, records) == (expected, count)


def test_a_room_that_is_too_small_anywhere_is_known_everywhere(scene, make_passage, monkeypatch):
    make, _ = make_passage
    plain = ex.route_splats

    def overflowing(*args, **named):
        routing = plain(*args, **named)
        if args[1].ids[0] == 1:  # Rank 1's first Gaussian.
            routing.counts[:, ex.OVERFLOWED] = 1
        return routing

    monkeypatch.setattr("strategies.distribution.gaussian_exchange.route_splats", overflowing)
    assert VirtualWorld(3).run(lambda comm: make(comm, Workspace()).fits) == [False] * 3


def test_gradients_out_of_their_turn_are_refused(scene, make_passage):
    make, _ = make_passage

    def main(comm: Communicator) -> None:
        passages = [make(comm, Workspace()) for _ in range(2)]
        for passage in passages:
            assert passage.fits
        Passage.depart_in_turns(passages, Turns.alike(comm.ranks, 2))
        gradients = torch.zeros(passages[1].arrive().count, GRADIENT)
        with pytest.raises(AssertionError, match="in their turns"):
            passages[1].give_back(gradients, 1)

    VirtualWorld(1).run(main)
