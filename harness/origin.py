"""Whether the packages that Python finds are ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from harness.errors import UserError

_COMPANIONS = ("strategies", "cuda_src")


def check_origin() -> None:
    """UserError when a foreign package shadows one that belongs beside `harness`: their names are common words."""
    beside = Path(__file__).resolve().parents[1]
    for name in _COMPANIONS:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise UserError(f"package {name!r} is missing; expected it beside harness, in a complete installation")
        places = [Path(place).resolve() for place in spec.submodule_search_locations or [spec.origin or ""]]
        if places != [beside / name]:
            where = ", ".join(str(place) for place in places)
            raise UserError(
                f"package {name!r} of {where} shadows the one beside harness in {beside}; expected a directory or "
                "environment without a package of that name"
            )
