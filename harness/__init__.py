"""The harness measures: suites become cells, cells become processes, processes become records and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api import run as run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    """`harness.run`, imported when it is asked for: workers import this package, and need no suite."""
    if name == "run":
        from harness.api import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
