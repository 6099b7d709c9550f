"""The beginning of a strategy in a package of its own: it works, is exact, and is there to be replaced by pieces."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.errors import UserError
from strategies.registry import strategies

_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "suite.yaml": "suite.yaml",
    "__init__.py": "{name}/__init__.py",
    "info.py": "{name}/info.py",
    "strategy.py": "{name}/strategy.py",
    "test_exact.py": "tests/test_{name}_is_exact.py",
}
"""Templates and where in the package's folder they go."""


def new_strategy(name: str, parent: Path) -> Path:
    """Write `parent/name`, a package that an installation registers as a strategy; the folder.

    Raises UserError for a name that cannot be that of a module, or is taken, and when the folder exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or keyword.iskeyword(name):
        raise UserError(
            f"NAME has the value {name!r}; expected a to z, digits and '_' with a letter first, as of a module"
        )
    folder = parent / name
    if folder.exists():
        raise UserError("exists already; expected a new folder", folder)
    if name in strategies() or importlib.util.find_spec(name) is not None:
        raise UserError(f"NAME has the value {name!r}, which a strategy or module has already; expected another")
    templates = Environment(
        loader=PackageLoader("harness", "templates/strategy"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    texts = {
        folder / place.format(name=name): templates.get_template(f"{template}.j2").render(
            name=name, class_name=class_name
        )
        for template, place in _FILES.items()
    }
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror}); expected a folder for the package", folder) from None
    return folder
