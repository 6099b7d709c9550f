"""Training cells as TensorBoard files."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.records.store import SAMPLES


@pytest.fixture
def run(folder):
    """A folder with one trained cell of three steps."""
    run = folder("run")
    run.cell([1.0], scenario="train", strategy="single")
    rows = [{"series": "training", "metric": "loss", "images_seen": n, "value": 1 / n} for n in (1, 2, 3)]
    pd.DataFrame(rows).to_parquet(next(run.path.rglob("record-0000")) / SAMPLES, index=False)
    return run


def test_a_curve_is_written_by_images_seen(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = CliRunner().invoke(app, ["tensorboard", str(run.path), "--out", str(tmp_path / "tb")])
    assert done.exit_code == 0, done.output
    (place,) = (tmp_path / "tb").iterdir()
    events = EventAccumulator(str(place))
    events.Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 0.333)]


def test_without_the_package_a_sentence_says_how_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = CliRunner().invoke(app, ["tensorboard", str(run.path), "--out", str(tmp_path / "tb")])
    assert done.exit_code == 2
    assert "splat-harness[tensorboard]" in done.output
    assert not (tmp_path / "tb").exists()
