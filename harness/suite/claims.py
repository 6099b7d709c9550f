"""Published figures as rows of a suite, each with the cells that will test it, or why none can. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from harness.records.schema import METRICS
from harness.suite import validation
from harness.suite.cell import Frozen
from harness.suite.settings import plain
from harness.suite.yaml_source import LocatedMap, describe


class Claim(Frozen):
    """One published figure.

    A claim is tested by comparing `metric` of the case `test` with that of the case `against` (their ratio is the
    effect, of decibels their difference), or by the value of `test` alone where there is no `against`. Exactly one of
    `test`, `planned` and `not_testable` says what becomes of it.
    """

    id: str
    system: Literal["grendel", "splaxel", "bytesplat", "unified"]
    says: str
    """The claim in a sentence, with the authors' hardware."""
    published: float
    """Of the metric, or of its ratio or difference where `against` is given."""
    metric: str
    test: str | None = None
    against: str | None = None
    stage: str | None = None
    """Of the metric; otherwise all stages together."""
    over: str | None = None
    """Another metric of the same cell, by which the first is divided: a share."""
    at_most: bool = False
    """The value is a cost: less is as good as published. Only of claims without `against`."""
    planned: str | None = Field(None, min_length=1)
    """What has to be built first."""
    not_testable: str | None = Field(None, min_length=1)
    """What no machine at hand has."""

    @model_validator(mode="after")
    def _one_fate(self) -> Claim:
        fates = [self.test, self.planned, self.not_testable]
        if sum(fate is not None for fate in fates) != 1:
            raise ValueError("expected exactly one of 'test', 'planned' and 'not_testable'")
        if self.against is not None and self.test is None:
            raise ValueError("'against' needs 'test'")
        for key in ("stage", "over"):
            if getattr(self, key) is not None and self.test is None:
                raise ValueError(f"{key!r} needs 'test'")
        if self.at_most and self.against is not None:
            raise ValueError("'at_most' is of a value; a ratio says by itself which way it goes")
        for metric in (self.metric, self.over):
            if metric is not None and metric not in METRICS:
                raise ValueError(f"metric {metric!r} is unknown{validation.nearest(metric, METRICS)}")
        return self

    @property
    def fate(self) -> str:
        """What becomes of it, in words."""
        if self.test is not None:
            return self.test + (f" against {self.against}" if self.against else "")
        return f"planned: {self.planned}" if self.planned else f"not testable here: {self.not_testable}"


def read_claims(sections: list[LocatedMap], cases: Collection[str]) -> tuple[Claim, ...]:
    """The claims of a suite whose cases have these names. Raises UserError for what is wrong."""
    claims: list[Claim] = []
    for i, section in enumerate(sections):
        where = f"claims[{i}]"
        claim = _claim(section, where)
        if claim.id in {c.id for c in claims}:
            place = section.value_places["id"]
            raise place.error(f"{where}.id: value {describe(claim.id)} is taken; expected an id of its own")
        for key in ("test", "against"):
            name: Any = section.get(key)
            if name is not None and name not in cases:
                place = section.value_places[key]
                raise place.error(f"{where}.{key}: no case named {describe(name)}{validation.nearest(name, cases)}")
        claims.append(claim)
    return tuple(claims)


def _claim(section: LocatedMap, where: str) -> Claim:
    for key in section:
        if key not in Claim.model_fields:
            raise section.key_places[key].error(
                f"{where}.{key}: unknown key{validation.nearest(key, Claim.model_fields)}"
            )
    try:
        return Claim.model_validate(plain(section))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        place = section.value_places.get(key, section.place)
        text = first["msg"].removeprefix("Value error, ")
        raise place.error(f"{where}{'.' + key if key else ''}: {text}") from None
