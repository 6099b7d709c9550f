"""One table that all places see, as on GPUs, in the memory of a host: who owns and moves which rows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cuda_src.reference
import strategies.unified.strategy as unified_strategy
from cuda_src.bounds import groups_seen
from cuda_src.layout import GROUP, PARAMETERS
from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.distribution.communicator import LocalCommunicator
from strategies.single.info import SingleOptions
from strategies.single.strategy import Single
from strategies.training.config import Training
from strategies.unified.info import MEBIBYTE, ROW_BYTES, UnifiedOptions
from strategies.unified.placement import GPUS, Ground, rows_of, spans_of, stripes_of
from strategies.unified.strategy import Unified
from strategies.unified.table import arenas_over
from strategies.views import ViewQueue

KERNELS = KernelSet("reference", precision="float64", t_stop=0.0)
SMOOTH = Training(sh_every=0, epsilon=1e-8)


@pytest.fixture
def shared_tables(monkeypatch):
    """Kernels that know whole tables as those of GPUs do, and tables in the memory of the host; the tables, once laid
    out."""
    reference, laid_out = cuda_src.reference, []
    project = reference.project

    def project_seen(kernels, parameters, ids, camera, degree, work, bounds=None):
        """Only groups that the bounds may show, as the compiled cull."""
        if bounds is None:
            return project(kernels, parameters, ids, camera, degree, work)
        seen = torch.empty(len(bounds), dtype=torch.bool)
        groups_seen(kernels, bounds, camera, seen)
        rows = seen.repeat_interleave(GROUP)[: len(parameters)].nonzero()[:, 0]
        splats = project(kernels, parameters[rows], ids[rows], camera, degree, work)
        return replace(splats, rows=rows[splats.rows])

    def move(kernels, *given):
        """Rows that a view sees, whatever else the tables hold."""
        *tables, views, degree, work, pace, beta1, beta2, epsilon, rows, _, bounds, part = given
        assert rows != "dense", "this operator would move rows of other places"
        assert part == "all"
        every = torch.unique(torch.cat([seen.splats.rows for seen in views]))
        total = torch.zeros((len(every), PARAMETERS), dtype=torch.float64)
        seen_by = torch.zeros(len(every), dtype=torch.int32)
        for seen in views:
            at = torch.searchsorted(every, seen.splats.rows)
            total.index_add_(0, at, reference.project_backward(kernels, tables[0], seen.splats, seen.camera, degree,
                                                               seen.gradients, work))  # fmt: skip
            seen_by[at] += 1
        kept = total.any(dim=1) | (rows != "touched")
        every, total, seen_by = every[kept], total[kept], seen_by[kept]
        reference.adam_rows(
            kernels, *tables, every, total, seen_by, pace.rates.double(), pace.images_seen, beta1, beta2, epsilon
        )
        reference.widen_groups(kernels, tables[0], every, bounds)

    def lay_out(options, count, devices, kernels, batch):
        tables = [torch.full((count, PARAMETERS), torch.nan, dtype=kernels.dtype) for _ in range(3)]
        laid_out[:] = tables
        return arenas_over(options, count, devices, batch, lambda device: tables), lambda: None

    monkeypatch.setattr(reference, "project", project_seen)
    monkeypatch.setattr(reference, "project_backward_adam", move, raising=False)
    monkeypatch.setattr(reference, "READS_BOUNDS", True, raising=False)
    monkeypatch.setattr(unified_strategy, "lay_out", lay_out)
    monkeypatch.setattr("strategies.unified.table.GPUS", Ground(GROUP * ROW_BYTES // 2, GROUP))
    return laid_out


def unified(scene, places: int, training=SMOOTH, batch=1, **options) -> Unified:
    comm, devices = LocalCommunicator(places=places), (torch.device("cpu"),) * places
    context = replace(scene.context(KERNELS, training, batch, comm), world=World(0, 1, devices, places))
    strategy = Unified()
    stripe = 3 * GROUP * ROW_BYTES // 2  # A group and a half: every other border lies inside one.
    strategy.setup(context, scene.source, scene.images, UnifiedOptions(**{"stripe_bytes": stripe} | options))
    return strategy


def by_id(strategy, column: str) -> torch.Tensor:
    shards = list(strategy.shards())
    ids = torch.cat([s.ids for s in shards])
    assert sorted(ids.tolist()) == list(range(len(ids)))
    return torch.cat([getattr(s, column) for s in shards])[torch.argsort(ids)]


@pytest.mark.parametrize("placement", ["round_robin", "striped"])
@pytest.mark.parametrize("exchange", ["push", "remote_atomic", "local_reduce"])
@pytest.mark.parametrize(("places", "batch", "optimizer"), [(1, 1, "visible"), (3, 2, "dense"), (4, 2, "touched")])
def test_places_that_share_a_table_equal_single(
    make_scene, shared_tables, places, batch, optimizer, placement, exchange
):
    scene, training = make_scene(count=300), SMOOTH.model_copy(update={"optimizer": optimizer})
    strategy = unified(scene, places, training, batch, placement=placement, exchange=exchange)
    assert sum(place.arena.count for place in strategy.places) == 300
    orders = [ViewQueue(range(4), seed=3) for _ in range(2)]
    losses = [strategy.step(orders[0]).loss.item() for _ in range(4)]
    tables = {name: by_id(strategy, name) for name in ("parameters", "moment1", "moment2")}
    for table, shared in zip(tables.values(), shared_tables, strict=True):
        assert torch.equal(table, shared)
    image = strategy.render(scene.cameras[1])
    with pytest.MonkeyPatch.context() as plain:
        plain.delattr(cuda_src.reference, "project_backward_adam")
        plain.setattr(cuda_src.reference, "READS_BOUNDS", False)
        oracle = Single()
        oracle.setup(scene.context(KERNELS, training, batch), scene.source, scene.images, SingleOptions())
        expected = [oracle.step(orders[1]).loss.item() for _ in range(4)]
        assert losses == pytest.approx(expected, abs=1e-10)
        assert torch.allclose(tables["parameters"], by_id(oracle, "parameters"), atol=1e-8, rtol=0)
        assert torch.allclose(image, oracle.render(scene.cameras[1]), atol=1e-8, rtol=0)


def test_each_place_tells_its_share_of_the_table_as_memory_outside_the_allocator(make_scene, shared_tables):
    strategy = unified(make_scene(count=300), 3)
    row = 3 * PARAMETERS * shared_tables[0].element_size()
    assert strategy.mapped_bytes == [row * place.arena.count for place in strategy.places]
    assert sum(strategy.mapped_bytes) == 300 * row


def test_bounds_of_a_place_hold_its_own_groups_alone(make_scene, shared_tables):
    strategy = unified(make_scene(count=300), 3)
    owned = torch.zeros(300, dtype=torch.int64)
    for place in strategy.places:
        bounds = place.arena.gaussians.bounds(KERNELS)
        empty = bounds[:, 0] > bounds[:, 4]
        own = torch.zeros(300, dtype=torch.bool)
        own[place.arena.rows] = True
        assert torch.equal(own, ~empty.repeat_interleave(GROUP)[:300])
        owned += own
    assert (owned == 1).all()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 60_000),
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(["round_robin", "striped", "managed"]),
)
def test_stripes_on_gpus_are_whole_granules_and_groups_stay_together(count, places, granules, placement):
    options = UnifiedOptions(placement=placement, stripe_bytes=granules * 2 * MEBIBYTE)
    stripes = stripes_of(options, count, places, GPUS)
    assert [s.begin for s in stripes] == [0, *(s.end for s in stripes[:-1])][: len(stripes)]
    assert all(s.begin % GPUS.granule == s.end % GPUS.granule == 0 < s.end - s.begin for s in stripes)
    assert 0 <= (stripes[-1].end if stripes else 0) - count * ROW_BYTES < GPUS.granule
    owners = torch.full((count,), -1)
    for place in range(places):
        for span in spans_of(options, count, place, places, GPUS):
            assert span.offset % GROUP == 0
            assert (owners[span.offset : span.offset + span.count] == -1).all()
            owners[span.offset : span.offset + span.count] = place
        assert torch.equal(rows_of(spans_of(options, count, place, places, GPUS)), (owners == place).nonzero()[:, 0])
    for group in range(0, count, GROUP):
        home = next(s.place for s in stripes if s.begin <= group * ROW_BYTES < s.end)
        assert (owners[group : group + GROUP] == home).all()
