"""Other trees: a folder as it stands, a revision unpacked, and neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.evidence.trees import LAYERS, ROOT, other, present


def test_a_folder_with_the_three_layers_is_taken_as_it_stands(tmp_path):
    for layer in LAYERS:
        (tmp_path / layer).mkdir()
    with other(str(tmp_path)) as tree:
        assert tree.root == tmp_path.resolve()


def test_a_revision_is_unpacked_while_it_is_needed():
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    with other("HEAD") as tree:
        root = tree.root
        assert all((root / layer).is_dir() for layer in LAYERS)
        assert len(tree.commit) == 12
        assert tree.code_id("single")
    assert not root.exists()


@pytest.mark.parametrize("against", ["no-such-revision", "--output=x", "."])
def test_what_is_neither_is_a_mistake(tmp_path, monkeypatch, against):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(UserError, match=r"--against: value .*expected a revision of this checkout, or a folder"),
        other(against),
    ):
        pass


def test_a_trees_command_imports_that_tree_whatever_is_installed(tmp_path):
    for layer in (*LAYERS, "harness/runner"):
        (tmp_path / layer).mkdir()
        (tmp_path / layer / "__init__.py").touch()
    (tmp_path / "harness/runner/worker.py").write_text("def main(folder):\n    print(__file__, folder.name)\n")
    with other(str(tmp_path)) as tree:
        done = subprocess.run(tree.command([Path("a"), Path("b")]), capture_output=True, text=True, check=True)
    expected = tmp_path.resolve() / "harness/runner/worker.py"
    assert done.stdout.split() == [str(expected), "a", str(expected), "b"]
    assert present().command([])[0] == sys.executable
