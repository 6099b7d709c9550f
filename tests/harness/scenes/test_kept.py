"""Tables that are drawn once a machine and mapped by every process after."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from harness.scenes import kept
from harness.scenes.anchor import AnchorGaussians
from harness.scenes.kept import kept_table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tables are kept; here all of them are large enough."""
    monkeypatch.setenv("SPLAT_HARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "WORTH_KEEPING", 1)
    return tmp_path / "tables"


class Drawing:
    """A table of ones, and how often it was drawn."""

    def __init__(self, rows: int = 3) -> None:
        self.rows, self.times = rows, 0

    def __call__(self) -> torch.Tensor:
        self.times += 1
        return torch.ones(self.rows, 2)

    def table(self, name: str = "ones") -> torch.Tensor:
        return kept_table(name, (self.rows, 2), self)


def test_the_second_time_it_is_read_and_what_is_written_into_it_stays_with_its_owner(folder: Path) -> None:
    drawing = Drawing()
    for _ in range(3):
        table = drawing.table()
        assert torch.equal(table, torch.ones(3, 2))
        table.zero_()
    assert drawing.times == 1
    assert [path.name for path in folder.iterdir()] == ["ones.float32"]


def test_a_file_of_another_size_is_drawn_anew(folder: Path) -> None:
    drawing = Drawing()
    drawing.table()
    (folder / "ones.float32").write_bytes(b"part")
    assert torch.equal(drawing.table(), torch.ones(3, 2))
    assert drawing.times == 2
    assert (folder / "ones.float32").stat().st_size == 24


def test_small_tables_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "WORTH_KEEPING", 25)
    Drawing().table()
    assert not folder.exists()


def test_those_used_longest_ago_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 48)
    for age, name in enumerate(("old", "older")):
        Drawing().table(name)
        os.utime(folder / f"{name}.float32", (1000 - age, 1000 - age))
    Drawing().table("new")
    assert {path.name for path in folder.iterdir()} == {"old.float32", "new.float32"}


@pytest.mark.parametrize("trouble", ["no space", "no writing"])
def test_where_it_cannot_be_kept_it_is_drawn_and_nothing_is_left(folder: Path, monkeypatch, trouble: str) -> None:
    if trouble == "no space":
        usage = namedtuple("usage", "free")(47)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    else:
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no writing")))
    drawing = Drawing()
    for _ in range(2):
        assert torch.equal(drawing.table(), torch.ones(3, 2))
    assert drawing.times == 2
    assert list(folder.iterdir()) == []


def test_the_anchor_is_the_same_from_its_file(folder: Path) -> None:
    every = torch.arange(300)
    drawn, read = (AnchorGaussians(300, 5).read(every, torch.device("cpu")) for _ in range(2))
    assert len(list(folder.iterdir())) == 1
    assert torch.equal(drawn, read)


def test_means_of_the_anchor_are_kept_by_themselves(folder: Path) -> None:
    drawn, read = (AnchorGaussians(300, 5) for _ in range(2))
    assert (drawn.bounds == read.bounds).all()
    assert len(list(folder.glob("anchor-300-5-*-means.float32"))) == 1
    means = read.read(torch.arange(300), torch.device("cpu"))[:, :3]
    assert torch.equal(read.positions(20, 300), means[20:])
    assert (read.bounds == torch.stack([means.amin(0), means.amax(0)]).numpy()).all()
