"""Claims: each names what becomes of it, and a mistake is one sentence with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from harness.errors import UserError
from harness.suite.claims import Claim
from harness.suite.machine import Machine
from harness.suite.plan import plan
from strategies.registry import strategies

SUITES = Path(__file__).parents[3] / "suites"
CPU = Machine(gpus=0, nvcc=False, cpus=2, compiled=False)
HEAD = """\
suite: 1
defaults: {scene: {city: small_aerial}, device: cpu}
cases: [{name: ours}, {name: theirs, batch: 2}]
claims:
"""
GOOD = (
    "  - {id: a, system: grendel, says: twice, published: 2.0, metric: views_per_second, test: ours, against: theirs}\n"
)


def claims_of(tmp_path: Path, text: str):
    file = tmp_path / "s.yaml"
    file.write_text(HEAD + text)
    return plan(file, machine=CPU).claims


def test_a_claim_names_the_cells_that_test_it(tmp_path):
    (claim,) = claims_of(tmp_path, GOOD)
    assert claim.fate == "ours against theirs"
    assert claim.published == 2.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD.replace("test: ours, against: theirs", "test: our"), "s.yaml:5: claims[0].test: no case named 'our'"),
        (GOOD.replace("test: ours, against: theirs", "note: x"), "claims[0].note: unknown key"),
        (GOOD.replace("test: ours, against: theirs", "planned: x, test: ours"), "expected exactly one of"),
        (GOOD.replace("test: ours, against: theirs", "planned: x, against: ours"), "'against' needs 'test'"),
        (GOOD.replace("views_per_second", "view_per_second"), "did you mean 'views_per_second'"),
        (GOOD.replace("grendel", "gaian"), "claims[0].system"),
        (GOOD.replace("2.0", "much"), "claims[0].published"),
        (GOOD.replace("says: twice", "says: twice, over: step_second"), "did you mean 'step_seconds'"),
        (GOOD.replace("test: ours, against: theirs", "planned: x, over: loss"), "'over' needs 'test'"),
        (GOOD.replace("says: twice", "says: twice, at_most: true"), "'at_most' is of a value"),
        (GOOD + GOOD, "claims[1].id: value 'a' is taken"),
    ],
)
def test_a_mistaken_claim_is_refused_with_its_line(tmp_path, text, sentence):
    with pytest.raises(UserError) as caught:
        claims_of(tmp_path, text)
    assert sentence in str(caught.value)
    assert "s.yaml:" in str(caught.value)


def test_every_system_has_claims_and_each_says_what_becomes_of_it():
    claims = plan(SUITES / "claims.yaml", machine=CPU).claims
    assert {claim.system for claim in claims} == {"grendel", "splaxel", "bytesplat", "unified"}
    assert all(claim.fate for claim in claims)


OFFERED = {"native": "link", "host": "link", "paced": "link", "nccl": "engine", "gloo": "engine", "virtual": "engine"}


def offered(claim: Claim) -> list[str]:
    """What a planned claim waits for though it is there: links, engines, its system's options, its system on GPUs."""
    text = claim.planned or ""
    info = strategies()[claim.system]
    found = [f"{kind} {word}" for word, kind in OFFERED.items() if re.search(rf"\b{word}\b", text)]
    lacking = False
    for name, field in info.options.model_fields.items():
        for value in get_args(field.annotation):
            if re.search(rf"\b{value}\b".replace("_", "[_ ]"), text):
                lacks = info.lacks(info.options.model_validate({name: value}), "cuda")
                lacking |= lacks is not None
                found += [f"{name}: {value}"] if lacks is None else []
    if re.search(r"\bon (the |several |\d+ )?GPUs?\b", text) and not lacking:
        found.append(f"{claim.system} on GPUs")
    return found


def test_what_a_claim_waits_for_is_not_there_yet():
    claims = plan(SUITES / "claims.yaml", machine=CPU).claims
    assert {claim.id: offered(claim) for claim in claims if claim.planned and offered(claim)} == {}


@pytest.mark.parametrize(
    ("system", "planned", "there"),
    [
        ("grendel", "link: host on several GPUs", ["link host", "grendel on GPUs"]),
        ("unified", "the aggregate device on 8 GPUs", ["unified on GPUs"]),
        ("unified", "remote atomic additions", ["exchange: remote_atomic"]),
        ("bytesplat", "the bitmap on the wire", ["codec: bitmap"]),
        ("bytesplat", "the fused raster on the GPU", []),
    ],
)
def test_a_claim_that_waits_for_what_is_there_is_found(system, planned, there):
    claim = Claim(id="a", system=system, says="", published=1.0, metric="loss", planned=planned)
    assert offered(claim) == there
