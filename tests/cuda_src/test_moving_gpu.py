"""Moving the rows of a step at once, on a GPU: equal to the gradient of each view, their sum, and Adam, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from cuda_src import layout
from cuda_src import operators as op
from cuda_src.camera import Camera
from cuda_src.exchange import SENT_GRADIENTS
from cuda_src.operators import KernelSet, Seen, Splats
from cuda_src.workspace import Workspace

pytestmark = pytest.mark.gpu

IMAGES_SEEN = 7


@dataclass(frozen=True)
class Model:
    """Parameters and moments [N, 59] and ids [N] on the GPU, rates [59] on the CPU."""

    parameters: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor
    ids: torch.Tensor
    rates: torch.Tensor

    @classmethod
    def of(cls, view, device: torch.device) -> Model:
        generator = torch.Generator().manual_seed(len(view.parameters))
        shape = view.parameters.shape
        moment1 = 0.1 * torch.randn(shape, generator=generator)
        moment2 = 0.01 + 0.01 * torch.rand(shape, generator=generator)
        rates = torch.linspace(1e-2, 1e-1, layout.PARAMETERS)
        return cls(*(t.to(device) for t in (view.parameters, moment1, moment2, view.ids)), rates)

    def tables(self, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """Copies of parameters and moments."""
        return [t.to(dtype, copy=True) for t in (self.parameters, self.moment1, self.moment2)]


def turned(camera: Camera, degrees: float, shift: float) -> Camera:
    """The camera turned about its vertical axis, and moved along x."""
    angle = np.deg2rad(degrees)
    turn = np.eye(4)
    turn[:3, :3] = [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    turn[0, 3] = shift
    return replace(camera, world_to_camera=turn @ camera.world_to_camera)


def seen_by(kernels: KernelSet, model: Model, camera: Camera, degree: int, seed: int) -> Seen:
    """What the camera sees, with a random gradient by each splat; a third of them get none."""
    device = model.parameters.device
    splats = op.project(kernels, model.parameters, model.ids, camera, degree, Workspace(device))
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(splats.count, layout.GRADIENT, generator=generator)
    gradients[::3] = 0
    return Seen(splats, camera, gradients.to(device))


def part(seen: Seen, which: torch.Tensor) -> Seen:
    splats = seen.splats
    return Seen(
        Splats(splats.rows[which], splats.ids[which], splats.records[which]), seen.camera, seen.gradients[which]
    )


def in_turn(
    kernels: KernelSet,
    tables: list[torch.Tensor],
    views: Sequence[Seen],
    degree: int,
    rates: torch.Tensor,
    rows: op.MovedRows = "visible",
    batch_rule: op.BatchRule = "rows",
) -> None:
    """project_backward of each view, the sum by row, and adam_rows."""
    parameters, real, device = tables[0], tables[0].dtype, tables[0].device
    sums = torch.zeros_like(parameters)
    times = torch.zeros(len(parameters), dtype=torch.int32, device=device)
    for seen in views:
        splats = replace(seen.splats, records=seen.splats.records.to(real))
        gradients = op.project_backward(
            kernels, parameters, splats, seen.camera, degree, seen.gradients.to(real), Workspace(device)
        )
        sums.index_add_(0, splats.rows, gradients)
        times[splats.rows] += 1
    moved = {"visible": times > 0, "touched": sums.any(dim=1), "dense": torch.ones_like(times, dtype=torch.bool)}[rows]
    number = moved.nonzero()[:, 0]
    gradients, averaged = sums[number], times[number]
    if batch_rule == "none":
        gradients, averaged = gradients / len(views), torch.ones_like(averaged)
    elif batch_rule == "batch" or rows == "dense":
        averaged = torch.full_like(averaged, len(views))
    op.adam_rows(kernels, *tables, number, gradients, averaged, rates.to(device, real), IMAGES_SEEN)


def at_once(kernels: KernelSet, tables: list[torch.Tensor], views: Sequence[Seen], degree: int, rates, **rules) -> None:
    work = Workspace(tables[0].device)
    op.project_backward_adam(kernels, *tables, views, degree, work, op.Pace(rates, IMAGES_SEEN), **rules)


def assert_moves_agree(parity, kernels, model: Model, views: Sequence[Seen], degree: int = 3, **rules) -> None:
    """At once and in turn agree closely, in all rows; and both with float64 where float32 decides as it does."""
    ours, theirs = model.tables(), model.tables()
    at_once(kernels, ours, views, degree, model.rates, **rules)
    in_turn(kernels, theirs, views, degree, model.rates, **rules)
    for one, other, what in zip(ours, theirs, ("parameters", "first moments", "second moments"), strict=True):
        # Column by column, so that no column hides behind another.
        for column in range(layout.PARAMETERS):
            parity.close(one[:, column], other[:, column], 2e-6, f"{what}, column {column}")
    for one, other, before in zip(ours, theirs, model.tables(), strict=True):
        assert torch.equal((one != before).any(dim=1), (other != before).any(dim=1))

    reference = KernelSet("reference", precision="float64")
    here = [
        Seen(
            Splats(seen.splats.rows.cpu(), seen.splats.ids.cpu(), seen.splats.records.cpu()),
            seen.camera,
            seen.gradients.cpu(),
        )
        for seen in views
    ]
    exact = [t.cpu() for t in model.tables(torch.float64)]
    in_turn(reference, exact, here, degree, model.rates, **rules)
    clear = torch.ones(len(model.ids), dtype=torch.bool)
    for seen in views:
        clear &= parity.clear_rows(kernels, ParameterView(model.parameters.cpu(), model.ids.cpu(), seen.camera), degree)
    assert clear.double().mean() > 0.3
    for one, other, before in zip(ours, exact, model.tables(), strict=True):
        change, expected = one.cpu() - before.cpu(), other - before.cpu().double()
        for name, columns in layout.PARAMETER_GROUPS.items():
            parity.close(change[clear][:, columns], expected[clear][:, columns], 1e-3, f"change of {name}")


@dataclass(frozen=True)
class ParameterView:
    """As the parity tests' View."""

    parameters: torch.Tensor
    ids: torch.Tensor
    camera: Camera


@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
@pytest.mark.parametrize("rows", ["visible", "touched", "dense"])
def test_one_view(parity, kernels, device, rows, sh_degree):
    view = parity.view(3, gaussians=300)
    model = Model.of(view, device)
    seen = seen_by(kernels, model, view.camera, sh_degree, 1)
    assert 0 < seen.splats.count < 300
    assert_moves_agree(parity, kernels, model, [seen], sh_degree, rows=rows)


@pytest.mark.parametrize("rows", ["visible", "touched", "dense"])
@pytest.mark.parametrize("batch_rule", ["rows", "batch", "none"])
@pytest.mark.parametrize("batch", [2, 5])
def test_views_that_overlap(parity, kernels, device, batch, batch_rule, rows):
    view = parity.view(5, gaussians=501)
    model = Model.of(view, device)
    cameras = [turned(view.camera, 8.0 * i, 0.1 * i) for i in range(batch)]
    views = [seen_by(kernels, model, camera, 2, i) for i, camera in enumerate(cameras)]
    first, second = (set(seen.splats.rows.tolist()) for seen in views[:2])
    assert first & second
    assert first - second
    assert_moves_agree(parity, kernels, model, views, 2, rows=rows, batch_rule=batch_rule)


@pytest.mark.parametrize("rows", ["visible", "touched", "dense"])
def test_views_that_have_no_row_in_common_and_one_that_sees_nothing(parity, kernels, device, rows):
    view = parity.view(6, gaussians=200)
    model = Model.of(view, device)
    whole = seen_by(kernels, model, view.camera, 3, 1)
    even = torch.arange(whole.splats.count, device=device) % 2 == 0
    views = [part(whole, even), part(whole, torch.zeros_like(even)), part(whole, ~even)]
    assert_moves_agree(parity, kernels, model, views, rows=rows)


@pytest.mark.parametrize("rows", ["visible", "touched", "dense"])
@pytest.mark.parametrize("batch", [1, 3, 9])
def test_what_no_other_rank_has_a_share_of_moves_first_and_the_rest_as_it_would_have(
    parity, kernels, device, batch, rows
):
    view = parity.view(5, gaussians=901)
    model = Model.of(view, device)
    generator, views, alone = torch.Generator().manual_seed(4), [], []
    waits = torch.zeros(-(-len(model.ids) // 32), dtype=torch.bool, device=device)
    zeros, zero_rows = torch.zeros(1, dtype=torch.int64, device=device), 0
    for i in range(batch):
        seen = seen_by(kernels, model, turned(view.camera, 8.0 * i, 0.1 * i), 3, i)
        alone.append(seen)
        # Neighbours mostly go to the same ranks.
        there = torch.rand(-(-len(model.ids) // 64), generator=generator) < 1.2 / max(3, batch)
        elsewhere = there.to(device)[seen.splats.rows // 64]
        waits[seen.splats.rows[elsewhere] // 32] = True
        # A gradient that is kept lies somewhere else, and what is drawn nowhere has none.
        count = seen.splats.count
        nowhere = torch.arange(count, device=device) % 7 == 5
        seen.gradients[nowhere & ~elsewhere] = 0
        places = (torch.arange(count, device=device) + 3).int()
        places[nowhere], places[elsewhere] = op.NOWHERE, op.ELSEWHERE
        kept = torch.zeros(count + 3, layout.GRADIENT_STRIDE, device=device)[:, : layout.GRADIENT]
        kept[3:] = seen.gradients
        zero_rows += int((~seen.gradients.any(dim=1) & (places >= 0)).sum())
        summed = torch.where(elsewhere[:, None], seen.gradients, torch.nan)
        views.append(replace(seen, gradients=summed, kept=op.Kept(places, kept, zeros)))
    waits = waits.repeat_interleave(32)[: len(model.ids)]
    whole, parts, work = model.tables(), model.tables(), Workspace(device)
    pace = op.Pace(model.rates, IMAGES_SEEN)
    given = views, 3, work, pace
    op.project_backward_adam(kernels, *whole, alone, 3, Workspace(device), pace, rows=rows)
    op.project_backward_adam(kernels, *parts, *given, rows=rows, part="find")
    for table, before in zip(parts, model.tables(), strict=True):
        assert torch.equal(table, before)
    op.project_backward_adam(kernels, *parts, *given, rows=rows, part="own")
    for table, all_moved, before in zip(parts, whole, model.tables(), strict=True):
        assert torch.equal(table[waits], before[waits])
        assert torch.equal(table[~waits], all_moved[~waits])
        assert not torch.equal(table, before)
        assert not torch.equal(table, all_moved)
    op.project_backward_adam(kernels, *parts, *given, rows=rows, part="rest")
    for table, all_moved in zip(parts, whole, strict=True):
        assert torch.equal(table, all_moved)
    assert 0 < int(zeros) == zero_rows


@pytest.mark.parametrize("kept", [(True,), (False,), (True, False), (False, True, True)])
def test_views_that_one_rank_renders_whole_have_all_their_gradients_there_or_elsewhere(parity, kernels, device, kept):
    view = parity.view(5, gaussians=901)
    model = Model.of(view, device)
    views, alone, zeros = [], [], torch.zeros(1, dtype=torch.int64, device=device)
    waits, zero_rows = torch.zeros(-(-len(model.ids) // 32), dtype=torch.bool, device=device), 0
    for i, own in enumerate(kept):
        seen = seen_by(kernels, model, turned(view.camera, 25.0 * i, 0.5 * i), 3, i)
        alone.append(seen)
        seen.gradients[:, SENT_GRADIENTS:] = 0  # What does not travel.
        rows = torch.zeros(seen.splats.count, layout.GRADIENT_STRIDE, device=device)[:, : layout.GRADIENT]
        rows.copy_(seen.gradients)
        rows = rows if own else rows[:, :SENT_GRADIENTS].contiguous()
        views.append(replace(seen, gradients=rows, kept=op.Kept(None, rows if own else None, zeros)))
        zero_rows += int((~seen.gradients.any(dim=1)).sum()) * own
        if not own:
            waits[seen.splats.rows // 32] = True
    waits = waits.repeat_interleave(32)[: len(model.ids)]
    whole, parts, work = model.tables(), model.tables(), Workspace(device)
    pace = op.Pace(model.rates, IMAGES_SEEN)
    op.project_backward_adam(kernels, *whole, alone, 3, Workspace(device), pace)
    for part_of, moved in (("find", torch.zeros_like(waits)), ("own", ~waits), ("rest", torch.ones_like(waits))):
        op.project_backward_adam(kernels, *parts, views, 3, work, pace, part=part_of)
        for table, all_moved, before in zip(parts, whole, model.tables(), strict=True):
            assert torch.equal(table[moved], all_moved[moved])
            assert torch.equal(table[~moved], before[~moved])
    assert int(zeros) == zero_rows


@pytest.mark.parametrize("rows", ["visible", "touched"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_that_sees_nothing_moves_nothing(parity, kernels, device, batch, rows):
    view = parity.view(6, gaussians=40)
    model = Model.of(view, device)
    nothing = part(seen_by(kernels, model, view.camera, 3, 1), torch.zeros(0, dtype=torch.int64, device=device))
    tables = model.tables()
    at_once(kernels, tables, [nothing] * batch, 3, model.rates, rows=rows)
    for table, before in zip(tables, model.tables(), strict=True):
        assert torch.equal(table, before)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 64, 65, 95, 97, 130])
@pytest.mark.parametrize("rows", ["visible", "dense"])
def test_groups_of_any_size(parity, kernels, device, count, rows):
    """The last group may end at any row, and then within a piece of 16 bytes."""
    view = parity.view(8, gaussians=600)
    splats = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, Workspace(device))
    view = view.only(splats.rows[:count].tolist())
    model = Model.of(view, device)
    seen = seen_by(kernels, model, view.camera, 3, 1)
    assert seen.splats.count == count
    # A guard behind each table: what lies there must stay.
    guarded = [torch.cat([t, torch.full((1, layout.PARAMETERS), 7.0, device=device)]) for t in model.tables()]
    tables = [t[:count] for t in guarded]
    expected = model.tables()
    at_once(kernels, tables, [seen], 3, model.rates, rows=rows)
    in_turn(kernels, expected, [seen], 3, model.rates, rows=rows)
    for table, other, whole in zip(tables, expected, guarded, strict=True):
        parity.close(table, other, 2e-6)
        assert (whole[count] == 7.0).all()


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_rows_between_those_that_move_keep_their_bits(parity, kernels, device, share):
    view = parity.view(9, gaussians=1000)
    model = Model.of(view, device)
    whole = seen_by(kernels, model, view.camera, 3, 1)
    some = (torch.rand(whole.splats.count, generator=torch.Generator().manual_seed(3)) < share).to(device)
    views = [part(whole, some)]
    tables = model.tables()
    at_once(kernels, tables, views, 3, model.rates)
    still = torch.ones(1000, dtype=torch.bool, device=device)
    still[views[0].splats.rows] = False
    for table, before in zip(tables, model.tables(), strict=True):
        assert torch.equal(table[still], before[still])
        assert not torch.equal(table, before)


def test_touched_leaves_rows_whose_gradients_cancel_over_views(parity, kernels, device):
    view = parity.view(10, gaussians=150)
    model = Model.of(view, device)
    seen = seen_by(kernels, model, view.camera, 3, 1)
    opposite = seen.gradients.clone()
    opposite[::2] *= -1
    tables = model.tables()
    at_once(kernels, tables, [seen, replace(seen, gradients=-opposite)], 3, model.rates, rows="touched")
    # Of every other splat the two gradients are equal; the others' cancel.
    kept = seen.splats.rows[1::2]
    touched = seen.gradients.any(dim=1)
    moved = seen.splats.rows[::2][touched[::2]]
    for table, before in zip(tables, model.tables(), strict=True):
        assert torch.equal(table[kept], before[kept])
    assert (tables[0][moved] != model.parameters[moved]).any(dim=1).all()


@pytest.mark.parametrize("rows", ["visible", "touched", "dense"])
@pytest.mark.parametrize("batch", [1, 2])
def test_nothing_is_written_while_the_overflow_of_a_view_is_set(parity, kernels, device, batch, rows):
    view = parity.view(11, gaussians=120)
    model = Model.of(view, device)
    seen = seen_by(kernels, model, view.camera, 3, 1)
    clear = torch.zeros(1, dtype=torch.int32, device=device)
    views = [replace(seen, splats=replace(seen.splats, overflow=clear)) for _ in range(batch)]
    flag = torch.ones(1, dtype=torch.int32, device=device)
    views[-1] = replace(seen, splats=replace(seen.splats, overflow=flag))
    tables = model.tables()
    at_once(kernels, tables, views, 3, model.rates, rows=rows)
    for table, before in zip(tables, model.tables(), strict=True):
        assert torch.equal(table, before)
    flag.zero_()
    at_once(kernels, tables, views, 3, model.rates, rows=rows)
    assert not torch.equal(tables[0], model.parameters)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_room_that_is_not_full_counts_as_far_as_it_is_in_use(parity, kernels, device, batch):
    """What lies beyond is whatever was in memory: row numbers that exist nowhere, and gradients that are no numbers."""
    view = parity.view(12, gaussians=200)
    model = Model.of(view, device)
    exact = [seen_by(kernels, model, turned(view.camera, 5.0 * i, 0.0), 3, i) for i in range(batch)]
    roomy = []
    for seen in exact:
        rows = torch.cat([seen.splats.rows, torch.full((50,), 1 << 40, device=device)])
        padding = torch.full((50, layout.RECORD), float("nan"), device=device)
        live = torch.tensor([seen.splats.count, 0], device=device)
        splats = Splats(rows, rows, torch.cat([seen.splats.records, padding]), live)
        roomy.append(Seen(splats, seen.camera, torch.cat([seen.gradients, padding[:, : layout.GRADIENT]])))
    tables, expected = model.tables(), model.tables()
    at_once(kernels, tables, roomy, 3, model.rates)
    at_once(kernels, expected, exact, 3, model.rates)
    for table, other in zip(tables, expected, strict=True):
        assert torch.equal(table, other)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_splat_without_a_depth_does_not_count(parity, kernels, device, batch):
    """Its colour is not finite: with a room it stays among the splats."""
    view = parity.view(13, gaussians=100)
    model = Model.of(view, device)
    seen = seen_by(kernels, model, view.camera, 3, 1)
    undrawn = torch.arange(seen.splats.count, device=device) % 4 == 1
    records = seen.splats.records.clone()
    records[undrawn, layout.RECORD_DEPTH] = float("nan")
    views = [replace(seen, splats=replace(seen.splats, records=records))] + [part(seen, ~undrawn)] * (batch - 1)
    tables, expected = model.tables(), model.tables()
    at_once(kernels, tables, views, 3, model.rates)
    at_once(kernels, expected, [part(seen, ~undrawn)] * batch, 3, model.rates)
    for table, other in zip(tables, expected, strict=True):
        assert torch.equal(table, other)


def test_the_second_step_allocates_nothing(parity, kernels, device):
    view = parity.view(14, gaussians=300)
    model, work = Model.of(view, device), Workspace(device)
    views = [seen_by(kernels, model, turned(view.camera, 6.0 * i, 0.0), 3, i) for i in range(3)]
    tables = model.tables()

    def step() -> None:
        op.project_backward_adam(kernels, *tables, views, 3, work, op.Pace(model.rates, IMAGES_SEEN))

    step()
    held = torch.cuda.memory_stats(device)["allocation.all.allocated"]
    step()
    assert torch.cuda.memory_stats(device)["allocation.all.allocated"] == held


def test_a_table_that_begins_between_words_is_refused(parity, kernels, device):
    view = parity.view(15, gaussians=50)
    model = Model.of(view, device)
    seen = seen_by(kernels, model, view.camera, 3, 1)
    shifted = torch.empty(model.parameters.numel() + 1, device=device)[1:].view_as(model.parameters)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        at_once(kernels, [shifted, *model.tables()[1:]], [seen], 3, model.rates)


def test_projection_reads_parameters_from_any_address(parity, kernels, device):
    view = parity.view(16, gaussians=90)
    there = view.parameters.to(device)
    shifted = torch.empty(there.numel() + 1, device=device)[1:].view_as(there).copy_(there)
    own, other = (
        op.project(kernels, table, view.ids.to(device), view.camera, 3, Workspace(device)) for table in (there, shifted)
    )
    assert own.count > 0
    assert torch.equal(own.records, other.records)
    assert torch.equal(own.rows, other.rows)


def test_many_groups_that_see_little_are_projected_in_order(parity, kernels, device):
    """More groups than a warp culls at once, most of them empty, and a ragged last one."""
    view = parity.view(17, gaussians=600)
    spread = torch.full((700_007, layout.PARAMETERS), 0.0)
    spread[:, layout.MEAN] = torch.from_numpy(view.camera.centre).float()  # At the camera: nobody sees them.
    places = torch.randperm(len(spread), generator=torch.Generator().manual_seed(1))[:600].sort().values
    places[-1] = len(spread) - 1
    spread[places] = view.parameters
    ids = torch.arange(len(spread))
    ids[places] = view.ids
    few = op.project(kernels, view.parameters.to(device), view.ids.to(device), view.camera, 3, Workspace(device))
    many = op.project(kernels, spread.to(device), ids.to(device), view.camera, 3, Workspace(device))
    assert torch.equal(many.rows.cpu(), places[few.rows.cpu()])
    assert torch.equal(many.records, few.records)
    assert torch.equal(many.ids, few.ids)
