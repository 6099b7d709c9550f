"""Times by commit: steps are found where they are, and nowhere else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.evidence.history import find_steps, history

STEADY = (1.00, 1.01, 0.99)


def levels(*factors, noise=0.01, repeats=3, seed=0):
    generator = np.random.default_rng(seed)
    return [list(factor * (1 + noise * generator.standard_normal(repeats))) for factor in factors]


@pytest.mark.parametrize(
    ("factors", "steps"),
    [
        ([1] * 8, []),
        ([1, 1, 1, 1, 0.7, 0.7, 0.7, 0.7], [(4, -0.3)]),
        ([1, 1, 1, 1, 0.7, 0.7, 0.7, 1.2, 1.2, 1.2, 1.2], [(4, -0.3), (7, 0.71)]),
        ([1, 1.3], []),  # Three repeats a side say nothing.
        ([1], []),
        ([], []),
    ],
)
def test_steps_are_found_where_the_level_changes(factors, steps):
    found = find_steps(levels(*factors), 0.03)
    assert [cut for cut, _ in found] == [cut for cut, _ in steps]
    assert [change for _, change in found] == pytest.approx([change for _, change in steps], abs=0.03)


def test_noise_without_a_step_is_no_step():
    for seed in range(30):
        assert find_steps(levels(*[1] * 10, noise=0.02, seed=seed), 0.03) == []


def test_a_change_below_the_minimum_effect_is_no_step():
    assert find_steps(levels(*[1.0] * 6, *[1.02] * 6, noise=0.001), 0.03) == []


def test_every_code_is_a_point_under_its_commit(folder):
    run = folder("run")
    for day, factor in enumerate((1, 1, 0.7, 0.7), start=1):
        run.cell(
            [factor * (s + day / 1000) for s in STEADY],
            code=f"{day:012d}",
            commit=f"{day}" * 12,
            started=f"2026-01-{day:02d}",
        )
    run.cell([0.7] * 3, environment="2" * 12)
    first, other = history([run.path])
    assert [point.commit[0] for point in first.points] == ["1", "2", "3", "4"]
    assert [point.step for point in first.points] == [None, None, pytest.approx(-0.3, abs=0.01), None]
    assert len(other.points) == 1


def test_the_command_marks_the_step_and_speaks_json(folder):
    run = folder("run")
    for day, factor in enumerate((1, 1, 0.7, 0.7), start=1):
        run.cell([factor * (s + day / 1000) for s in STEADY], code=f"{day:012d}", started=f"2026-01-{day:02d}")
    plain = CliRunner().invoke(app, ["history", str(run.path)])
    assert plain.exit_code == 0
    assert "faster −30 %" in plain.stdout
    rows = json.loads(CliRunner().invoke(app, ["history", str(run.path), "--json"]).stdout)["rows"]
    assert [row["step"] is not None for row in rows] == [False, False, True, False]


def test_a_folder_without_times_ends_as_nothing(folder):
    assert CliRunner().invoke(app, ["history", str(folder("empty").path)]).exit_code == 4
