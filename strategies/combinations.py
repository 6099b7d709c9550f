"""Which mechanisms go together, as a table: `python -m strategies.combinations` prints strategies/README.md's.

Imports no torch. A test runs every combination that the table allows and sees every other one refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from strategies.info import StrategyInfo
from strategies.registry import BUILT_IN
from strategies.training.config import Training

MECHANISMS = ("raster", "codec", "ownership", "placement", "exchange", "compose", "boundary")
"""Options that are combined with each other and with occlusion, where a strategy has them."""
RANKS, BATCH = 2, 2
"""Of every combination: as many views as ranks, so that whole images can be dealt."""


@dataclass(frozen=True)
class Combination:
    """One choice of every mechanism. refusal: why it does not exist; None when it runs."""

    strategy: str
    ranks: int
    options: dict[str, Any]
    occlusion: str
    refusal: str | None


def combinations(info: StrategyInfo) -> Iterator[Combination]:
    """Every choice of the strategy's mechanisms, refused ones included."""
    ranks = min(RANKS, info.max_ranks or RANKS)
    fields = info.options.model_fields
    names = [name for name in MECHANISMS if name in fields]
    for values in product(*(get_args(fields[name].annotation) for name in names)):
        options = dict(zip(names, values, strict=True))
        for occlusion in get_args(Training.model_fields["occlusion"].annotation):
            model = info.options.model_validate(options)
            training = Training.model_validate({"occlusion": occlusion})
            refusal = (
                info.lacks(model, "cpu") or info.refuses(model, ranks, BATCH) or info.refuses_training(model, training)
            )
            yield Combination(info.name, ranks, options, occlusion, refusal)


def table() -> str:
    """Markdown: what combines freely in each strategy, and what is refused, with the reason."""
    lines = ["| strategy | mechanisms | run | refused |", "|---|---|---|---|"]
    for info in BUILT_IN:
        every = list(combinations(info))
        fields = info.options.model_fields
        choices = [f"{n} {'/'.join(map(str, get_args(fields[n].annotation)))}" for n in MECHANISMS if n in fields]
        choices.append("occlusion off/history")
        reasons = dict.fromkeys(c.refusal for c in every if c.refusal)
        refused = "; ".join(f"{reason} ({sum(c.refusal == reason for c in every)})" for reason in reasons)
        run = sum(c.refusal is None for c in every)
        lines.append(f"| `{info.name}` | {' x '.join(choices)} | {run} of {len(every)} | {refused} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
