"""The hash of the sources that can change a cell's result."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from strategies.registry import BUILT_IN, strategy

SUFFIXES = frozenset({".py", ".cu", ".cuh", ".h", ".hpp", ".cpp"})

STARTS_ONLY = frozenset(
    {"console.py", "execute.py", "failure.py", "finished.py", "kernels.py", "launch.py", "lock.py", "prepared.py"}
    | {"progress.py", "recording.py", "run.py", "disk.py", "scene_check.py"}
)
"""Files of harness/runner that start workers and read what they leave; every other file there runs inside them."""

_ROOT = Path(__file__).resolve().parents[2]


def code_id(*names: str, root: Path = _ROOT) -> str:
    """12 hex digits for a cell of the strategies named: its own, and the one that trained what it starts `from`.

    Hashed, by path and content: cuda_src, harness/scenes, harness/measure, what runs inside a worker, what all
    strategies share, and the folders of those strategies and of strategies that their sources import. Left out:
    suites, records, reports, command line, the registry, other strategies. KeyError for an unknown strategy.
    """
    return _hash(tuple(sorted(set(names))), root)


@cache
def _hash(names: tuple[str, ...], root: Path) -> str:
    digest = hashlib.sha256()
    for label, path in sorted(_files(names, root)):
        content = path.read_bytes()
        digest.update(f"{label}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def _files(names: tuple[str, ...], root: Path) -> Iterator[tuple[str, Path]]:
    """(path relative to the root, file) of every hashed source."""
    built_in = {info.name: _folder(info.implementation) for info in BUILT_IN}
    for folder in ("cuda_src", "harness/scenes", "harness/measure"):
        yield from _sources(root / folder, root)
    for label, path in _sources(root / "harness/runner", root):
        if path.name not in STARTS_ONLY:
            yield label, path
    used = _with_imports([built_in[name] for name in names if name in built_in], set(built_in.values()), root)
    for label, path in _sources(root / "strategies", root):
        folder = label.split("/")[1]
        if label != "strategies/registry.py" and (folder not in built_in.values() or folder in used):
            yield label, path
    for name in names:
        if name not in built_in:
            yield from _plugin_files(name)


def _folder(implementation: str) -> str:
    """`single` of `strategies.single.strategy:Single`."""
    return implementation.split(":")[0].split(".")[1]


def _with_imports(folders: Iterable[str], all_folders: set[str], root: Path) -> set[str]:
    """The strategy folders given, and those that sources in them import from."""
    used: set[str] = set()
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        if folder in used:
            continue
        used.add(folder)
        for _, path in _sources(root / "strategies" / folder, root):
            waiting += all_folders & set(re.findall(r"\bstrategies\.(\w+)", path.read_text(encoding="utf-8")))
    return used


def _sources(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.suffix in SUFFIXES and path.is_file():
            yield path.relative_to(root).as_posix(), path


def _plugin_files(name: str) -> Iterator[tuple[str, Path]]:
    """Sources of a strategy of another package: its module, and everything beside and below it in the same package."""
    top, *parts = strategy(name).implementation.split(":")[0].split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise KeyError(f"strategy {name!r}: its package {top!r} cannot be found")
    if spec.submodule_search_locations is None:
        yield f"plugin/{top}.py", Path(spec.origin)
        return
    package = Path(spec.origin).parent
    module = package.joinpath(*parts)
    beside = module if module.is_dir() else module.parent
    for label, path in _sources(beside, package):
        yield f"plugin/{top}/{label}", path
