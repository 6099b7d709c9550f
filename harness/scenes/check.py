"""Looking scenes over before anything runs: `python -m harness.scenes.check < SPECS`, a JSON list of scenes."""

from __future__ import annotations

import json
import sys

from harness.errors import EXIT_OK, EXIT_USAGE, UserError
from harness.scenes.load import check_scene
from harness.suite.cell import SceneSpec


def main(text: str) -> int:
    """Print the first mistake in the scenes' files; the exit code."""
    try:
        for spec in json.loads(text):
            check_scene(SceneSpec.model_validate(spec))
    except UserError as error:
        print(error)
        return EXIT_USAGE
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.stdin.read()))
