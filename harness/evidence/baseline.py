"""Baselines: records that were accepted, with the reason, and against which later ones are judged."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.evidence.measured import MeasuredCell, grouped
from harness.records.store import records, write_atomically, write_record

BASELINES = Path("results/baselines")
"""Where baselines lie, relative to the current directory."""
ABOUT = "baseline.json"
CELLS = "cells"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Baseline:
    """suite: its file, or None where records came from elsewhere. commit: that the records are of.

    accepted: every acceptance so far, oldest first: reason, commit and date.
    """

    name: str
    suite: str | None
    commit: str
    accepted: tuple[dict[str, str], ...]
    cells: list[MeasuredCell]


def read_baseline(name: str, root: Path = BASELINES) -> Baseline:
    """The baseline of that name; UserError when there is none or it is damaged."""
    folder = root / _checked(name)
    about = folder / ABOUT
    if not about.is_file():
        known = sorted(path.parent.name for path in root.glob(f"*/{ABOUT}")) if root.is_dir() else []
        raise UserError(
            f"--baseline: no baseline {name!r} in {root}; expected "
            + (f"one of: {', '.join(known)}, or --accept to write it" if known else "--accept to write the first")
        )
    try:
        data = json.loads(about.read_text(encoding="utf-8"))
        accepted = tuple({key: str(entry[key]) for key in ("reason", "commit", "date")} for entry in data["accepted"])
        suite, commit = data["suite"], accepted[-1]["commit"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"cannot be understood ({type(error).__name__}: {error}); it is damaged", about) from None
    found = records(folder / CELLS) if (folder / CELLS).is_dir() else []
    return Baseline(name, suite, commit, accepted, grouped(found))


def write_baseline(
    name: str,
    cells: Sequence[MeasuredCell],
    reason: str,
    suite: str | None,
    root: Path = BASELINES,
) -> Path:
    """Put these cells' records in the place of the baseline's; its folder. All of it is written, or nothing.

    A baseline names the commit that others can have: UserError when the records are of several commits or of changes
    that none holds, or when a cell is not ok.
    """
    folder = root / _checked(name)
    bad = [f"{cell.label} {cell.trouble}" for cell in cells if cell.trouble]
    if bad or not cells:
        raise UserError(f"--accept: expected cells that ended ok, found {'; '.join(bad) or 'none'}")
    commits = sorted({record.commit for cell in cells for _, record in cell.repeats})
    if len(commits) > 1 or commits[0].endswith("+changes"):
        raise UserError(f"--accept: records of {', '.join(commits)}; expected those of one commit without changes")
    earlier = list(read_baseline(name, root).accepted) if (folder / ABOUT).is_file() else []
    date = datetime.now(UTC).date().isoformat()
    about: dict[str, Any] = {
        "suite": suite,
        "accepted": [*earlier, {"reason": reason, "commit": commits[0], "date": date}],
    }
    root.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        for cell in cells:
            for place, record in cell.repeats:
                kept = fresh / CELLS / place.name
                kept.mkdir(parents=True)
                # Gates and medians are all that is compared; pictures stay with the run.
                result = record.result.model_copy(update={"images": []}) if record.result else None
                write_record(kept, record.model_copy(update={"result": result}))
        write_atomically(fresh / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        fresh.chmod(0o755)
        if folder.exists():
            folder.rename(fresh / "replaced")
        fresh.rename(folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    except BaseException:
        if (fresh / "replaced").exists() and not folder.exists():
            (fresh / "replaced").rename(folder)
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return folder


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"--baseline: value {name!r}; expected letters, digits, '.', '_' and '-'")
    return name
