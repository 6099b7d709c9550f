"""The files of a plan's scenes, looked over before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys

from harness.errors import EXIT_USAGE, UserError
from harness.suite.plan import Plan


def check_scenes(plan: Plan) -> None:
    """UserError for a mistake in the files of a scene that a cell will run on.

    The readers import torch, so they work in a process of their own, started only where a scene has files. What ends
    that process otherwise is left to the cells, whose records say it.
    """
    specs: dict[str, None] = {}
    for planned in plan.cells:
        scene = planned.cell.scene
        if planned.skip is None and (scene.path is not None or scene.model is not None):
            specs.setdefault(scene.model_dump_json(include={"city", "path", "model", "views"}))
    if not specs:
        return
    command = [sys.executable, "-m", "harness.scenes.check"]
    scenes = json.dumps([json.loads(spec) for spec in specs])
    checked = subprocess.run(command, input=scenes, capture_output=True, text=True)
    if checked.returncode == EXIT_USAGE:
        raise UserError(checked.stdout.strip())
