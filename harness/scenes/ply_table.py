"""PLY files as tables: the header, and the vertices as a mapped structured array."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from harness.errors import UserError

_TYPES = {
    "char": "i1",
    "int8": "i1",
    "uchar": "u1",
    "uint8": "u1",
    "short": "i2",
    "int16": "i2",
    "ushort": "u2",
    "uint16": "u2",
    "int": "i4",
    "int32": "i4",
    "uint": "u4",
    "uint32": "u4",
    "float": "f4",
    "float32": "f4",
    "double": "f8",
    "float64": "f8",
}
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "<"}
_MAX_HEADER_BYTES = 1 << 16


def vertex_table(path: Path, needed: tuple[str, ...]) -> np.ndarray:
    """The `vertex` element of a PLY file, a structured array [count] with one field a property.

    Binary files are mapped, not read. The vertex element must come first and hold scalars only. Raises UserError
    when a needed property is missing, and when the file is cut short, longer than announced or no PLY file.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(_MAX_HEADER_BYTES)
            size = stream.seek(0, 2)
    except (OSError, ValueError) as error:
        raise UserError("PLY file is missing or cannot be read", path) from error
    form, count, dtype, alone, start = _header(head, path)
    missing = [name for name in needed if name not in (dtype.names or ())]
    if missing:
        raise UserError(f"vertex has no property {', '.join(missing)}; expected {', '.join(needed)}", path)
    if form == "ascii":
        return _read_ascii(path, start, count, dtype)
    length = size - start
    if count * dtype.itemsize > length or (alone and count * dtype.itemsize != length):
        raise UserError(
            f"{length} bytes follow the header; expected {count} vertices of {dtype.itemsize} bytes, "
            f"{count * dtype.itemsize} in all",
            path,
        )
    if count == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r", start, (count,))


def _header(head: bytes, path: Path) -> tuple[str, int, np.dtype, bool, int]:
    """Format, number of vertices, their type, whether no other element follows, and the first byte after it."""
    if not head.startswith((b"ply\n", b"ply\r\n")):
        raise UserError("is no PLY file; expected it to start with the line 'ply'", path)
    form, count, fields, elements, start = "", -1, [], 0, 0
    for number, raw in enumerate(head.splitlines(keepends=True), 1):
        start += len(raw)
        words = raw.decode("ascii", errors="replace").split()
        match words:
            case ["end_header"]:
                break
            case ["format", name, "1.0"] if name in _ORDERS:
                form = name
            case ["element", name, amount] if form and amount.isdecimal() and len(amount) < 16:
                elements += 1
                if elements == 1:
                    if name != "vertex":
                        raise UserError(f"first element is {name!r}; expected 'vertex'", path, number)
                    count = int(amount)
            case ["property", *_] if elements > 1:
                pass
            case ["property", kind, name] if elements == 1 and kind in _TYPES:
                fields.append((name, _ORDERS[form] + _TYPES[kind]))
            case ["comment" | "obj_info", *_] | ["ply"]:
                pass
            case _:
                raise UserError(f"unexpected header line {' '.join(words)[:60]!r}", path, number)
    else:
        raise UserError("has no end_header line", path)
    names = [name for name, _ in fields]
    if count < 0 or not fields or len(set(names)) != len(names):
        raise UserError("header: expected a format, an element vertex and its properties, each once", path)
    return form, count, np.dtype(fields), elements == 1, start


def _read_ascii(path: Path, start: int, count: int, dtype: np.dtype) -> np.ndarray:
    if count == 0:
        return np.empty(0, dtype)
    shortest = 2 * count * len(dtype.names or ()) - 1
    if shortest > path.stat().st_size - start:
        raise UserError(f"announces {count} vertices, {shortest} bytes or more; the file is cut short", path)
    with path.open("rb") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream.seek(start)
        try:
            table = np.loadtxt(stream, dtype=dtype, max_rows=count, ndmin=1, comments=None, encoding="ascii")
        except (ValueError, OverflowError, UnicodeDecodeError) as error:
            raise UserError(f"body: {error}", path) from error
    if len(table) != count:
        raise UserError(f"body has {len(table)} lines of vertices; expected {count}", path)
    return table
