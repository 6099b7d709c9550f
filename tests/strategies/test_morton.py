"""Storage order: neighbours in space lie together, ids stay with their Gaussians, and nothing depends on the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.operators import KernelSet
from strategies import morton
from strategies.base import Shard
from strategies.gaussians import Gaussians
from strategies.morton import MORTON_BITS, morton_codes, morton_order, source_codes, source_order
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single


def test_codes_keep_the_order_along_each_axis():
    bounds = np.array([[0, 0, 0], [1, 1, 1]], np.float32)
    for axis in range(3):
        points = torch.zeros(64, 3)
        points[:, axis] = torch.linspace(0, 1, 64)
        codes = morton_codes(points, bounds)
        assert (codes[1:] > codes[:-1]).all()
    flat = np.array([[0, 0, 0], [1, 0, 1]], np.float32)
    assert morton_codes(torch.zeros(2, 3), flat).tolist() == [0, 0]


def test_codes_have_21_bits_an_axis_interleaved_from_x():
    bounds = np.array([[0, 0, 0], [1, 1, 1]]) * 2.0**MORTON_BITS
    points = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [2, 0, 0], [5, 3, 6]], dtype=torch.float64)
    assert morton_codes(points, bounds).tolist() == [1, 2, 4, 8, 0b101_110_011]
    corner = morton_codes(torch.full((1, 3), 2.0**MORTON_BITS), bounds)
    assert corner.tolist() == [2 ** (3 * MORTON_BITS) - 1]


def test_what_lies_outside_the_bounds_or_nowhere_has_a_code():
    bounds = np.array([[0, 0, 0], [1, 1, 1]], np.float32)
    points = torch.tensor([[-5.0, 0, 0], [7.0, 1, 1], [float("nan"), 0, 0], [float("inf"), 1, 1]])
    codes = morton_codes(points, bounds)
    assert codes.tolist() == [0, 2 ** (3 * MORTON_BITS) - 1, 0, 2 ** (3 * MORTON_BITS) - 1]


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 60), distinct=st.integers(1, 5), seed=st.integers(0, 999))
def test_the_order_follows_positions_and_ids_whatever_rows_they_lie_in(count, distinct, seed):
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(distinct, 3, generator=generator)
    means = places[torch.randint(0, distinct, (count,), generator=generator)]  # Many share a code.
    ids = torch.randperm(count, generator=generator) * 1_000_003
    order = morton_order(means, ids)
    assert torch.equal(order.sort().values, torch.arange(count))
    codes = morton_codes(means, morton._finite_bounds(means))[order]
    keys = list(zip(codes.tolist(), ids[order].tolist(), strict=True))
    assert keys == sorted(keys)
    shuffle = torch.randperm(count, generator=generator)
    assert torch.equal(ids[shuffle][morton_order(means[shuffle], ids[shuffle])], ids[order])


def test_one_gaussian_that_is_nowhere_does_not_spoil_the_order_of_the_rest():
    means = torch.rand(200, 3)
    ids = torch.arange(200)
    order = morton_order(means, ids)
    means = torch.cat([means, torch.tensor([[float("nan"), 0, 0], [0, float("inf"), 0]])])
    spoilt = morton_order(means, torch.arange(202))
    assert torch.equal(spoilt[spoilt < 200], order)


def test_reading_positions_in_pieces_changes_nothing(make_scene, monkeypatch):
    source = make_scene(count=1000, views=1).source
    whole = source_order(source, "cpu")
    monkeypatch.setattr(morton, "_PIECE", 64)
    assert torch.equal(source_order(source, "cpu"), whole)
    assert torch.equal(morton_order(source.positions(0, 1000), torch.arange(1000)), whole)
    codes = source_codes(source)[whole]
    assert (codes[1:] >= codes[:-1]).all()
    some = torch.arange(0, 1000, 3)
    assert torch.equal(source_order(source, "cpu", some), whole[whole % 3 == 0])


def test_groups_of_rows_are_small(make_scene):
    """The point of it all: 32 neighbours in storage span a fraction of the scene."""
    source = make_scene(count=4096, views=1).source
    means = source.parameters[source_order(source, "cpu"), layout.MEAN].view(-1, 32, 3)
    volume = (means.amax(dim=1) - means.amin(dim=1)).prod(dim=1)
    assert volume.median() < 8 / 128 * 2  # Of a cube of volume 8 in 128 groups.


@dataclass
class Saved:
    """A ShardReader over shards in memory."""

    kept: list[Shard]

    @property
    def count(self) -> int:
        return sum(len(s.ids) for s in self.kept)

    def shards(self):
        yield from self.kept


@pytest.mark.parametrize("pieces", [1, 3])
def test_what_was_saved_in_any_order_is_stored_in_morton_order(make_scene, pieces):
    source = make_scene(count=90, views=1).source
    gaussians = Gaussians.from_source(source, source_order(source, "cpu"), torch.device("cpu"), torch.float32)
    gaussians.moment1[:] = gaussians.ids[:, None]
    shuffled = gaussians.rows(torch.randperm(90, generator=torch.Generator().manual_seed(1)))
    shards = [Shard(*(t[k::pieces] for t in (shuffled.ids, *shuffled.tables))) for k in range(pieces)]
    loaded = Gaussians.from_reader(Saved(shards), torch.device("cpu"), torch.float32)
    for ours, kept in zip((loaded.ids, *loaded.tables), (gaussians.ids, *gaussians.tables), strict=True):
        assert torch.equal(ours, kept)


def test_single_stores_its_rows_in_morton_order_under_their_ids(scene):
    strategy = Single()
    strategy.setup(scene.context(KernelSet("portable")), scene.source, scene.images, SingleOptions())
    ids = strategy.gaussians.ids
    assert torch.equal(ids, source_order(scene.source, "cpu"))
    assert not torch.equal(ids, ids.sort().values)
    assert torch.equal(strategy.gaussians.parameters, scene.source.parameters[ids])


@pytest.mark.gpu
def test_a_gpu_sorts_as_the_cpu_does(make_scene):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    source = make_scene(count=5000, views=1).source
    source.parameters[::5, layout.MEAN] = source.parameters[0, layout.MEAN]
    device = torch.device("cuda", 0)
    order = source_order(source, "cpu")
    assert torch.equal(source_order(source, device), order)
    some = torch.arange(0, 5000, 7)
    assert torch.equal(source_order(source, device, some), source_order(source, "cpu", some))
    means, ids = source.parameters[:, layout.MEAN], torch.arange(5000)
    assert torch.equal(morton_order(means.to(device), ids.to(device)).cpu(), order)
