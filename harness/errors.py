"""User mistakes: one clear sentence, exit code 2."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """A mistake in what the user gave; its text is the whole message.

    Say the file, the line where there is one, the key, the value and what was expected, as in
    `suites/a.yaml:12: axes.rank: unknown key; did you mean 'ranks'?`.
    """

    def __init__(self, message: str, file: str | Path | None = None, line: int | None = None):
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)
        self.file = file
        self.line = line


EXIT_OK = 0
EXIT_REGRESSED = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_NOTHING = 4
EXIT_INTERRUPTED = 130
