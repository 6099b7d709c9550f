"""Record folders on disk: writing one so that a crash never leaves half of it, and reading it back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import UserError
from harness.records.schema import SCHEMA, Record

RECORD = "record.json"
LOG = "log.txt"
SAMPLES = "samples.parquet"

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls a key that a model or a dataclass does not have."""


def write_atomically(path: Path, text: str) -> None:
    """The whole text or nothing: a temporary file beside the path, flushed to disk, then renamed over it."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_record(folder: Path, record: Record) -> None:
    """Make the folder a record. Until this returns, readers do not see it."""
    text = json.dumps(record.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False, allow_nan=True)
    write_atomically(folder / RECORD, text + "\n")


def read_record(folder: Path) -> Record:
    """The record in that folder.

    UserError, naming the file, when it is damaged or of a newer major version. Keys that a newer minor version
    added are left out.
    """
    path = folder / RECORD
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror}); expected a record", path) from None
    # The records of this version, which are nearly all: in one go, and with equal texts kept once.
    try:
        record = Record.model_validate_json(text)
    except ValidationError:
        return _read_with_care(text, path)
    _check_version(record.schema_version, path)
    return record


def _read_with_care(text: bytes, path: Path) -> Record:
    """A record of a newer minor version; UserError that says what is wrong with any other."""
    try:
        data = json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"is no JSON ({error}); the record is damaged", path) from None
    if not isinstance(data, dict):
        raise UserError("holds no JSON object; the record is damaged", path)
    version = data.get("schema")
    newer_minor = _check_version(version, path)
    while True:
        try:
            return Record.model_validate(data)
        except ValidationError as error:
            unknown = [e["loc"] for e in error.errors() if e["type"] in _UNKNOWN_KEY]
            if not (newer_minor and unknown):
                first = error.errors()[0]
                key = ".".join(str(part) for part in first["loc"])
                raise UserError(f"{key}: {first['msg']}; the record is damaged", path) from None
            for location in unknown:
                _remove(data, location)


def _check_version(version: Any, path: Path) -> bool:
    """Whether the version's minor part is newer than ours; UserError for another major version or none."""
    try:
        major, minor, _ = (int(part) for part in version.split("."))
    except (AttributeError, ValueError):
        raise UserError(f"schema: {version!r} is no version; expected one like {SCHEMA!r}", path) from None
    our_major, our_minor, _ = (int(part) for part in SCHEMA.split("."))
    if major != our_major:
        advice = "a newer version of this package reads it" if major > our_major else "no reader for it is left"
        raise UserError(f"schema: {version} where {our_major}.x was expected; {advice}", path)
    return minor > our_minor


def _remove(data: Any, location: tuple[int | str, ...]) -> None:
    for part in location[:-1]:
        data = data[part]
    del data[location[-1]]


def record_folders(folder: Path) -> Iterator[Path]:
    """Every record folder at or below, in order of path."""
    for path in sorted(folder.rglob(RECORD)):
        yield path.parent


def records(*folders: Path | str) -> list[tuple[Path, Record]]:
    """Every record at or below the folders, each with its folder; a folder named twice counts once."""
    found: dict[Path, tuple[Path, Record]] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError("no such folder; expected a record, a run or a folder above", folder)
        for path in record_folders(folder):
            found.setdefault(path.resolve(), (path, read_record(path)))
    return list(found.values())


def free_folder(parent: Path, name: str) -> Path:
    """parent/name, or the first of name-2, name-3, ... that does not exist."""
    folder, number = parent / name, 1
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def remove_unfinished(parent: Path) -> None:
    """Remove the folders that a crashed run left without a record."""
    if parent.is_dir():
        for folder in parent.iterdir():
            if folder.is_dir() and not (folder / RECORD).exists():
                shutil.rmtree(folder, ignore_errors=True)
