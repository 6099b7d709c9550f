"""What is kept of a rank whose exchange did not end."""

from __future__ import annotations

import json

from harness.runner.flight_recorder import RECORDING, keep_recording


def test_the_last_exchanges_stay_as_text_a_line_each(tmp_path):
    exchanges = [{"stage": "exchange_forward", "bytes": 8, "state": state} for state in ("over", "begun", "queued")]
    keep_recording(tmp_path, 1, exchanges)
    text = (tmp_path / RECORDING.format(1)).read_text()
    assert json.loads(text) == exchanges
    assert len(text.splitlines()) == 3 + 2


def test_a_rank_that_exchanged_nothing_leaves_an_empty_list(tmp_path):
    keep_recording(tmp_path, 0, [])
    assert json.loads((tmp_path / RECORDING.format(0)).read_text()) == []
