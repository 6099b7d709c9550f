"""Trees of this project's sources: the present one, and another to be compared with it."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.measure.code_id import code_id
from harness.measure.environment import commit
from harness.records.schema import Record
from strategies.registry import strategies

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("harness", "strategies", "cuda_src")

_TOGETHER = """\
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from harness.runner.worker import main
for folder in sys.argv[2:]:
    main(Path(folder))
"""
"""A worker that runs cells one after another, from the tree named first: starting takes longer than a small cell."""


@dataclass(frozen=True)
class Tree:
    """name: as people call it. root: the folder that holds the three layers. commit: of records that it makes."""

    name: str
    root: Path
    commit: str

    def code_id(self, *strategies: str) -> str:
        """Of cells of these strategies, were they run from here."""
        return code_id(*strategies, root=self.root)

    def made(self, record: Record) -> bool:
        """Whether a record is of these sources. It does not say which strategy trained what its cell starts from."""
        strategy = record.cell["strategy"]
        trained = strategies() if record.cell.get("from") else ()
        return record.code_id in {self.code_id(strategy), *(self.code_id(strategy, before) for before in trained)}

    def command(self, folders: Sequence[Path]) -> list[str]:
        """Runs the cells described in the folders in one process that imports this tree, whatever is installed."""
        return [sys.executable, "-P", "-c", _TOGETHER, str(self.root), *map(str, folders)]


def present() -> Tree:
    """The sources that this process runs."""
    return Tree("present", ROOT, commit())


@contextmanager
def other(against: str) -> Iterator[Tree]:
    """The tree of a folder, or of a revision of this checkout, which is unpacked while the context lasts.

    UserError where `against` names neither.
    """
    folder = Path(against)
    if folder.is_dir() and all((folder / layer).is_dir() for layer in LAYERS):
        yield Tree(against, folder.resolve(), commit(folder))
        return
    revision = resolved(against)
    with tempfile.TemporaryDirectory(prefix="splat-harness-") as place:
        root = Path(place)
        archive = _git("archive", "--format=zip", revision, "--", *LAYERS)
        with zipfile.ZipFile(io.BytesIO(archive.stdout)) as packed:
            packed.extractall(root)
        yield Tree(against, root, revision[:12])


def resolved(revision: str) -> str:
    """The commit that a revision names; UserError where there is none here."""
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
    if found.returncode:
        raise UserError(
            f"--against: value {revision!r}; expected a revision of this checkout, or a folder that holds "
            f"{', '.join(LAYERS)}"
        )
    return found.stdout.decode().strip()


def _git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=check)
    except FileNotFoundError:
        raise UserError("--against: a revision needs git, which is not installed; expected a folder") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"--against: git {arguments[0]} ended in {error.stderr.decode().strip()!r}") from None
