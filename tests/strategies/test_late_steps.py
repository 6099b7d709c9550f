"""Steps queued before their rooms are known to suffice: in order, and done again from the first that overflowed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from cuda_src.operators import Bins, Room
from strategies.training.late_steps import LateSteps, Outcome, Plan
from strategies.training.rooms import MARGIN, Rooms

CPU = torch.device("cpu")


@dataclass
class Job:
    """What a view needs; rooms that are too small set the flag as kernels do, and steps are noted as they happen."""

    needs: dict[int, tuple[int, int]]
    ties: set[int] = field(default_factory=set)
    exact: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rooms = Rooms(CPU)
        self.late = LateSteps(self.rooms, CPU, self.again)
        self.images = 0

    def again(self, plan: Plan) -> Outcome:
        assert int(self.rooms.overflow) == 0
        self.exact.append(plan)
        for view in plan.views:
            self.rooms.learn(view, *self.needs[view])
        return Outcome(torch.tensor(-1.0), *(sum(self.needs[v][i] for v in plan.views) for i in (0, 1)))

    def bins(self, view: int, room: Room) -> Bins:
        splats, instances = self.needs[view]
        if splats > room.splats or instances > room.instances or view in self.ties:
            room.overflow.fill_(1)
        empty = torch.zeros(0, dtype=torch.int64)
        needed = torch.tensor([splats, 1, instances, int(room.overflow)])
        return Bins(empty, empty, empty, None, None, needed)

    def step(self, *views: int):
        plan = Plan(views, self.images)
        self.images += len(views)
        rooms = self.rooms.of(views)
        if rooms is None:
            self.late.settle()
            return lambda done=self.again(plan): done
        bins = [self.bins(view, room) for view, room in zip(views, rooms, strict=True)]
        return self.late.add(plan, rooms, bins, [torch.tensor(float(view)) for view in views])


def test_a_view_has_no_room_before_its_first_visit_and_then_a_little_more_than_it_needed():
    rooms = Rooms(CPU)
    rooms.learn(3, 3200, 64)
    assert rooms.of([3, 4]) is None
    assert rooms.of([3]) == [Room(3200 + 100 + MARGIN, 64 + 2 + MARGIN, rooms.overflow)]
    rooms.grow(3, 10, 6400)
    assert [(r.splats, r.instances) for r in rooms.of([3])] == [(3300 + MARGIN, 6600 + MARGIN)]
    rooms.refuse(3)
    assert rooms.of([3]) is None
    rooms.clear()
    rooms.learn(3, 1, 1)
    assert rooms.of([3]) is not None


def test_a_room_stays_the_same_while_it_fits_what_the_view_needs():
    rooms = Rooms(CPU)
    rooms.learn(3, 32_000, 64_000)
    (room,) = rooms.of([3])
    margin = 1000 + MARGIN
    assert (room.splats, room.instances) == (32_000 + margin, 66_000 + MARGIN)
    for needs in ((32_000 + margin // 5, 64_000), (32_000 - margin // 2, 64_000), (32_000, 63_000)):
        rooms.learn(3, *needs)
        assert rooms.of([3])[0] is room
    for needs in ((32_000 + margin // 3, 64_000), (64_000, 64_000), (32_000, 64_000), (32_000, 1000)):
        rooms.learn(3, *needs)
        (another,) = rooms.of([3])
        assert another is not room
        for size, need in ((another.splats, needs[0]), (another.instances, needs[1])):
            assert need + need // 32 + MARGIN == size
        room = another


def test_steps_with_enough_room_are_done_once_and_tell_what_they_saw():
    job = Job({0: (10, 20), 1: (30, 40)})
    outcomes = [job.step(view) for view in (0, 1, 0, 1)]
    assert len(job.exact) == 2
    done = outcomes[2]()
    assert (done.loss.item(), done.visible_gaussians, done.tile_instances) == (0.0, 9, 20)
    assert outcomes[3]().loss.item() == 1.0
    assert len(job.exact) == 2


def test_a_step_of_several_views_adds_them_up_and_takes_the_mean_of_their_losses():
    job = Job({0: (10, 20), 3: (30, 40)})
    job.step(0, 3)
    done = job.step(0, 3)()
    assert (done.loss.item(), done.visible_gaussians, done.tile_instances) == (1.5, 38, 60)


def test_rooms_follow_what_the_last_settled_visit_needed():
    job = Job({0: (10, 20)})
    job.step(0)
    job.needs[0] = 500, 600
    job.step(0)
    job.late.settle()
    assert [(r.splats, r.instances) for r in job.rooms.of([0])] == [(515 + MARGIN, 618 + MARGIN)]


@pytest.mark.parametrize("what", ["splats", "instances"])
def test_a_step_that_overflows_is_done_again_with_those_queued_after_it_in_their_order(what):
    job = Job({0: (10, 20), 1: (30, 40), 2: (5, 5)})
    for view in (0, 1, 2):
        job.step(view)
    job.exact.clear()
    good = job.step(0)
    job.needs[1] = (5000, 40) if what == "splats" else (30, 5000)
    failed = job.step(1)
    assert job.exact == []
    after = job.step(2)
    assert job.exact == [Plan((1,), 4), Plan((2,), 5)]
    assert int(job.rooms.overflow) == 0
    assert good().loss.item() == 0.0
    assert failed().loss.item() == after().loss.item() == -1.0
    assert (failed().visible_gaussians, failed().tile_instances) == job.needs[1]
    assert job.step(1)().loss.item() == 1.0


def test_a_second_step_that_overflows_behind_the_first_is_not_looked_at_but_done_with_it():
    job = Job({0: (10, 20), 1: (30, 40)})
    job.step(0), job.step(1)
    job.exact.clear()
    job.needs = {0: (5000, 20), 1: (30, 5000)}
    job.step(0), job.step(1)
    job.late.settle()
    assert job.exact == [Plan((0,), 2), Plan((1,), 3)]
    job.step(0), job.step(1)
    job.late.settle()
    assert len(job.exact) == 2


def test_settling_in_between_does_the_last_step_again_at_once():
    job = Job({0: (10, 20)})
    job.step(0)
    job.needs[0] = 9000, 9000
    job.step(0)
    job.exact.clear()
    job.late.settle()
    assert job.exact == [Plan((0,), 1)]
    job.late.settle()
    assert len(job.exact) == 1


def test_an_exact_step_waits_for_those_before_it():
    job = Job({0: (10, 20), 7: (1, 1)})
    job.step(0)
    job.needs[0] = 9000, 9000
    job.step(0)
    job.exact.clear()
    job.step(7)
    assert job.exact == [Plan((0,), 1), Plan((7,), 2)]


def test_a_view_that_overflows_for_its_equal_depths_keeps_exact_steps():
    job = Job({0: (10, 20), 1: (30, 40)})
    job.step(0, 1)
    job.ties.add(1)
    job.step(0, 1)
    job.late.settle()
    assert job.rooms.of([1]) is None
    assert job.rooms.of([0]) is not None


def test_splats_that_are_not_drawn_count_as_what_a_view_needs():
    job = Job({0: (10, 20)})
    job.step(0)
    job.needs[0] = 9000, 20
    exact = job.again

    def without_undrawn(plan: Plan) -> Outcome:
        done = exact(plan)
        job.rooms.learn(0, 10, 20)
        return done

    job.late = LateSteps(job.rooms, CPU, without_undrawn)
    job.step(0)
    job.late.settle()
    job.exact.clear()
    job.step(0)
    job.late.settle()
    assert job.exact == []
