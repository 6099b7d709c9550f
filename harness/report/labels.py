"""What cells are called: short names that tell the cells of one comparison apart, and the comparison's title."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from harness.report.quantities import count, ranks
from strategies.training.config import Training

GROUP = ["scenario", "machine", "scene", "gaussians", "width", "height", "batch"]
"""Cells are compared, and drawn in one plot, when these are equal."""

_TELLING = (
    "kernels",
    "link",
    "device",
    "precision",
    "options",
    "start",
    "training",
    "images",
    "seed",
    "threads",
    "deterministic",
    "commit",
    "code_id",
    "engine",
)
"""Fields that tell two cells of one strategy and rank count apart, the most telling first."""

_NOUNS = {"seed": "seed", "images": "images", "threads": "threads", "commit": "commit", "code_id": "code"}

_SETTINGS = [field for field in _TELLING if field not in ("engine", "commit")]
"""Cells of one strategy that agree in these differ in ranks, or in the group's fields, alone. The engine may differ,
since one rank has another than several; of two commits with the same code neither is another setting."""


def scene_name(spec: dict[str, Any], name: str | None) -> str:
    """The city's preset and tiling, or the photographs' name; Gaussians and size have their own place in titles.

    spec: SceneSpec as recorded. name: what the scene calls itself, once it was opened.
    """
    if not spec.get("city"):
        return name or Path(spec.get("path") or "").name
    across, along = spec.get("tile") or (1, 1)
    return str(spec["city"]) + (f" tiled {across} × {along}" if (across, along) != (1, 1) else "")


def size(width: float, height: float) -> str:
    """Image size in pixels, or that it is the photographs' own."""
    return "full size" if not width or not height else f"{int(width)} × {int(height)}"


def short_commit(commit: str) -> str:
    """The first seven digits, and whether there were changes beside it."""
    digits, plus, changes = commit.partition("+")
    return digits[:7] + plus + changes


def _described(field: str, value: Any) -> str:
    """One field's value as part of a label."""
    if field == "options":
        return ", ".join(f"{k} {v}" for k, v in json.loads(value).items()) or "defaults"
    if field == "training":
        usual = Training.model_validate({}).model_dump(mode="json")
        changed = {k: v for k, v in json.loads(value).items() if v != usual.get(k)}
        return ", ".join(f"{k} {v}" for k, v in changed.items()) or "usual training"
    if field == "start":
        return f"from {value[:8]}" if value else "from the scene"
    if field in ("commit", "code_id"):
        return f"{_NOUNS[field]} {short_commit(str(value))}"
    return f"{_NOUNS[field]} {value}" if field in _NOUNS else str(value)


def cell_labels(cells: pd.DataFrame) -> pd.Series:
    """A label a row of `cells` (frames.cells), unique among the rows of one group.

    Strategy, ranks and the case's name, if that is another; then, where two rows are still alike, the fields in which
    they differ.
    """
    labels = pd.Series("", index=cells.index, dtype="str")
    for _, group in cells.groupby(GROUP, dropna=False, sort=False):
        parts = {i: [str(r["strategy"]), ranks(int(r["ranks"]))] for i, r in group.iterrows()}
        for i, name in group["name"].items():
            if name and name != group.at[i, "strategy"]:
                parts[i].append(str(name))
        for field in _TELLING:
            values = group[field].to_dict()
            alike: dict[str, list[Any]] = {}
            for i, words in parts.items():
                alike.setdefault(" · ".join(words), []).append(i)
            for rows in alike.values():
                if len({values[i] for i in rows}) > 1:
                    for i in rows:
                        parts[i].append(_described(field, values[i]))
        texts = pd.Series({i: " · ".join(words) for i, words in parts.items()})
        twins = texts.duplicated(keep=False)
        labels.loc[texts.index] = texts.where(~twins, texts + " · " + group["cell_id"].str[:6])
    return labels


def series(cells: pd.DataFrame, but: str = "") -> pd.Series:
    """A number that cells of equal strategy and settings share, whatever their group, ranks and `but`."""
    settings = [field for field in _SETTINGS if field != but]
    return cells.groupby(["strategy", *settings], sort=False, dropna=False).ngroup()


def variants(cells: pd.DataFrame) -> pd.Series:
    """What tells a series from the others of its strategy in the group; empty where it is the only one.

    The name of its case or what its labels say beyond strategy and ranks, the shortest that any of its cells has.
    """
    # All groups at once: a selection a group takes seconds where there are hundreds.
    rivals = cells.groupby([*GROUP, "strategy"], dropna=False, sort=False).ngroup().rename("rivals")
    said = cells["label"].map(lambda label: label.partition(" · ")[2].partition(" · ")[2])
    told = pd.DataFrame({"said": said, "length": said.str.len(), "rivals": rivals, "series": cells["series"]})
    shortest = told[told["length"] > 0].sort_values(["length", "said"]).drop_duplicates(["rivals", "series"])
    found = told.join(shortest.set_index(["rivals", "series"])["said"].rename("shortest"), on=["rivals", "series"])
    several = told.groupby("rivals")["series"].transform("nunique") > 1
    return found["shortest"].where(several).fillna("").astype("str")


def group_titles(cells: pd.DataFrame) -> pd.Series:
    """The title of each row's group: scene, size and batch, and whatever else differs between the groups."""
    scenarios, machines = cells["scenario"].nunique(), cells["machine"].nunique()

    def title(row: pd.Series) -> str:
        words = [str(row["scene"])]
        if row["gaussians"]:
            words.append(f"{count(row['gaussians'])} Gaussians")
        words += [size(row["width"], row["height"]), f"batch {row['batch']}"]
        if scenarios > 1:
            words.insert(0, str(row["scenario"]))
        if machines > 1:
            words.append(str(row["machine"]))
        if row["stand_in"]:
            words.append("CPU-size scene")
        return " · ".join(words)

    return cells.apply(title, axis=1).astype("str")
