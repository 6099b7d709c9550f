"""bin_splats of every back end against `reference` in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_src import layout
from cuda_src.operators import Splats, bin_splats, project
from cuda_src.workspace import Workspace


def splats_of(parity, kernels, view):
    """Splats away from footprint edges, where float32 could decide differently."""
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    return parity.away_from_edges(kernels, splats, view.camera)


def assert_same_bins(ours, exact):
    for name in ("tiles", "starts", "splat", "splat_starts") + (("slot",) if ours.slot is not None else ()):
        mine, theirs = getattr(ours, name), getattr(exact, name)
        assert mine.dtype == theirs.dtype, name
        assert mine.tolist() == theirs.tolist(), name


@pytest.mark.parametrize("footprint", ["ellipse", "square"])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 33), (50, 40), (64, 48)])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_bins_agree_with_float64(parity, backend, footprint, width, height, seed):
    kernels = parity.kernels(backend, footprint=footprint)
    view = parity.view(seed, width=width, height=height)
    splats = splats_of(parity, kernels, view)
    ours = bin_splats(kernels, splats, view.camera, Workspace())
    exact = bin_splats(parity.oracle(kernels), parity.splats64(splats), view.camera, Workspace())
    assert_same_bins(ours, exact)


@pytest.mark.parametrize("tiles", [[], [0], [5], [1, 2, 7, 11], list(range(12))])
def test_bins_of_a_subset_of_tiles_are_those_tiles_of_the_whole(parity, backend, tiles):
    kernels, view = parity.kernels(backend), parity.view(8)
    splats = splats_of(parity, kernels, view)
    assert view.camera.tiles == 12
    whole = bin_splats(kernels, splats, view.camera, Workspace())
    part = bin_splats(kernels, splats, view.camera, Workspace(), torch.tensor(tiles, dtype=torch.int32))
    exact = bin_splats(
        parity.oracle(kernels),
        parity.splats64(splats),
        view.camera,
        Workspace(),
        torch.tensor(tiles, dtype=torch.int32),
    )
    assert_same_bins(part, exact)
    for k, tile in enumerate(tiles):
        mine = part.splat[part.starts[k] : part.starts[k + 1]]
        assert mine.tolist() == whole.splat[whole.starts[tile] : whole.starts[tile + 1]].tolist()


def test_slots_are_a_permutation_that_groups_instances_by_splat_with_ascending_tiles(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(9)
    splats = splats_of(parity, kernels, view)
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    if bins.slot is None:
        pytest.skip(f"{backend} sums by splat in no fixed order")
    assert sorted(bins.slot.tolist()) == list(range(bins.instances))
    counts = bins.starts[1:] - bins.starts[:-1]
    tile_of = torch.repeat_interleave(bins.tiles.long(), counts)
    by_slot = torch.argsort(bins.slot)
    for v in range(splats.count):
        own = by_slot[bins.splat_starts[v] : bins.splat_starts[v + 1]]
        assert (bins.splat[own] == v).all()
        tiles = tile_of[own].tolist()
        assert tiles == sorted(set(tiles))


def test_equal_depths_are_ordered_by_id_whatever_the_order_of_rows(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(10)
    splats = splats_of(parity, kernels, view)
    records = splats.records.clone()
    records[:, layout.RECORD_DEPTH] = torch.where(torch.arange(splats.count) % 3 == 0, 1.0, 2.0)
    order = torch.randperm(splats.count, generator=torch.Generator().manual_seed(1))
    tied = Splats(splats.rows, splats.ids, records)
    shuffled = Splats(splats.rows[order], splats.ids[order], records[order])
    ids = []
    for some in (tied, shuffled):
        bins = bin_splats(kernels, some, view.camera, Workspace())
        listed = bins.splat.long()
        for start, end in zip(bins.starts[:-1].tolist(), bins.starts[1:].tolist(), strict=True):
            keys = [(some.records[v, layout.RECORD_DEPTH].item(), some.ids[v].item()) for v in listed[start:end]]
            assert keys == sorted(keys)
        ids.append(some.ids[listed].tolist())
    assert ids[0] == ids[1]


def test_no_splats_give_empty_lists_for_every_tile(parity, backend):
    kernels, view = parity.kernels(backend), parity.view(11).only([])
    splats = project(kernels, view.parameters, view.ids, view.camera, 3, Workspace())
    bins = bin_splats(kernels, splats, view.camera, Workspace())
    assert bins.instances == 0
    assert bins.starts.tolist() == [0] * (view.camera.tiles + 1)
    assert bins.splat_starts.tolist() == [0]
