"""A step's exchanges by themselves move the rows of the step, as often as they are asked to, and nothing else."""

from __future__ import annotations

import pytest
import torch

from cuda_src.operators import KernelSet
from strategies.distribution.communicator import Communicator
from strategies.distribution.virtual import VirtualWorld
from strategies.grendel.info import GrendelOptions
from strategies.grendel.strategy import Grendel
from strategies.training.config import Training
from strategies.views import ViewQueue

VIEWS = [0, 1]


def after_steps(scene, ranks: int, steps: int, task, rate: float = 1.0, **options):
    """What the task returns of the communicator and a strategy that has made so many steps, by rank."""

    def main(comm: Communicator):
        strategy = Grendel()
        context = scene.context(KernelSet("portable"), Training(sh_every=0, rate_scale=rate), len(VIEWS), comm)
        strategy.setup(context, scene.source, scene.images, GrendelOptions(**options))
        order = ViewQueue(VIEWS, shuffle=False)
        for _ in range(steps):
            strategy.step(order)
        return task(comm, strategy, order)

    return VirtualWorld(ranks).run(main)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("record", ["packed", "64"])
def test_every_run_moves_the_rows_that_a_step_moves(scene, ranks, record):
    def moved(comm, strategy, order):
        comm.clear()
        strategy.step(order)
        of_step = {stage: comm.ledger.payload[stage].clone() for stage in ("exchange_forward", "exchange_backward")}
        trials, told = strategy.exchange_trials(VIEWS), []
        for trial in trials:
            for _ in range(2):
                comm.clear()
                trial.run()
                own = torch.diag(of_step[trial.stage].diagonal())
                assert torch.equal(comm.ledger.payload[trial.stage], of_step[trial.stage])
                assert comm.ledger.calls == {trial.stage: len(VIEWS)}
                told.append((trial, comm.ledger.over_link()[comm.rank] - own[comm.rank]))
        return told

    for rank, told in enumerate(after_steps(scene, ranks, 2, moved, rate=0.0, record=record, balance="off")):
        assert [trial.stage for trial, _ in told] == ["exchange_forward"] * 2 + ["exchange_backward"] * 2
        for trial, sent in told:
            rows = torch.tensor([to for to, _ in trial.counts]).sum(dim=0)
            others = torch.arange(ranks) != rank
            assert torch.equal(trial.row_bytes * rows[others], sent[others])
            assert sum(rows[others]) > 0


def test_what_one_rank_sends_is_what_the_other_awaits(scene):
    def counts(comm, strategy, order):
        return [torch.tensor(trial.counts) for trial in strategy.exchange_trials(VIEWS)]

    for stage in zip(*after_steps(scene, 3, 1, counts), strict=True):
        every = torch.stack(stage)  # [rank, view, way, peer]
        assert torch.equal(every[:, :, 0], every[:, :, 1].permute(2, 1, 0))


def test_training_goes_on_as_if_there_had_been_none(scene):
    def losses(comm, strategy, order, trials):
        for trial in strategy.exchange_trials(VIEWS) if trials else ():
            trial.run()
        return [strategy.step(order).loss.item() for _ in range(2)]

    with_them, without = (
        after_steps(scene, 2, 2, lambda *given, trials=trials: losses(*given, trials)) for trials in (True, False)
    )
    assert with_them == without


def test_gradients_whose_bytes_follow_from_their_values_are_left_out(scene):
    def stages(comm, strategy, order):
        return [trial.stage for trial in strategy.exchange_trials(VIEWS)]

    assert after_steps(scene, 2, 1, stages, codec="bitmap") == [["exchange_forward"]] * 2
