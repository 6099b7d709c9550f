"""The forms in which every table can be had. Imports nothing: the command line names them."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    json = "json"
