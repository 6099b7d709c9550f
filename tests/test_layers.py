"""Three layers, and imports only go down: harness -> strategies -> cuda_src."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "harness": {"harness", "strategies", "cuda_src"},
    "strategies": {"strategies", "cuda_src"},
    "cuda_src": {"cuda_src"},
}


def imported_layers(source: str) -> dict[str, int]:
    """Top-level packages of ours that a file imports anywhere in it, with a line for each."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            # importlib.import_module("harness.cli") and the like
            called = ast.unparse(node.func)
            if called.split(".")[-1] in ("import_module", "__import__"):
                names = [str(node.args[0].value)]
        for name in names:
            layer = name.split(".")[0]
            if layer in MAY_IMPORT:
                found.setdefault(layer, node.lineno)
    return found


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_never_imports_one_above_it(layer):
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for name, line in imported_layers(path.read_text()).items()
        if name not in MAY_IMPORT[layer]
    ]
    assert upward == []


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ("import harness.cli", {"harness"}),
        ("from strategies.base import Strategy", {"strategies"}),
        ("def f():\n    from harness import errors", {"harness"}),
        ("import importlib\nimportlib.import_module('harness.cli')", {"harness"}),
        ("import numpy\nfrom . import harness", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source, layers):
    assert set(imported_layers(source)) == layers


def test_nothing_reaches_above_its_own_package_by_a_relative_import():
    for layer in MAY_IMPORT:
        for path in (ROOT / layer).rglob("*.py"):
            depth = len(path.relative_to(ROOT).parts) - 1
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    assert node.level <= depth, f"{path.relative_to(ROOT)}:{node.lineno}"
