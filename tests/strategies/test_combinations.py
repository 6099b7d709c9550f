"""Any mechanism with any: what the table allows trains, what it refuses is refused, and the table is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_src.operators import KernelSet
from strategies.base import World
from strategies.combinations import BATCH, Combination, combinations, table
from strategies.distribution.communicator import Communicator, LocalCommunicator
from strategies.distribution.virtual import VirtualWorld
from strategies.registry import BUILT_IN, strategy
from strategies.training.config import Training
from strategies.views import ViewQueue

README = Path(__file__).parents[2] / "strategies" / "README.md"
ALL = [c for info in BUILT_IN for c in combinations(info)]
RUN = [c for c in ALL if c.refusal is None]


def losses(scene, chosen: Combination) -> list[float]:
    """The job's loss of two visits of the same views."""
    info = strategy(chosen.strategy)
    training = Training(sh_every=0, occlusion=chosen.occlusion)

    def main(comm: Communicator) -> list[float]:
        context = scene.context(KernelSet("portable"), training, BATCH, comm)
        if info.processes == "one":
            world = World(0, 1, (comm.device,) * chosen.ranks, chosen.ranks)
            context = type(context)(**{**vars(context), "world": world})
        trained = info.load()()
        trained.setup(context, scene.source, scene.images, info.options.model_validate(chosen.options))
        queue = ViewQueue(range(len(scene.cameras)), shuffle=False)
        return [float(trained.step(queue).loss) for _ in range(3)]

    if info.processes == "one" or chosen.ranks == 1:
        return main(LocalCommunicator(places=chosen.ranks))
    by_rank = torch.tensor(VirtualWorld(chosen.ranks).run(main), dtype=torch.float64)
    return by_rank.sum(dim=0).tolist()


@pytest.mark.parametrize("info", BUILT_IN, ids=lambda info: info.name)
def test_every_combination_that_is_not_refused_trains_like_single(make_scene, info):
    expected = losses(make_scene(count=40, views=2), Combination("single", 1, {}, "off", None))
    for chosen in combinations(info):
        if chosen.refusal is None:
            found = losses(make_scene(count=40, views=2), chosen)
            # bf16 and dropped boundaries approximate; nothing may be far off.
            assert found == pytest.approx(expected, rel=0.02), chosen


def test_the_table_in_the_documents_is_the_one_that_the_code_gives():
    assert table() in README.read_text(), "run `python -m strategies.combinations` and paste its table"


def test_refusals_have_reasons_and_most_combinations_run():
    assert all(c.refusal for c in ALL if c not in RUN)
    assert len(RUN) > 0.8 * len(ALL)
