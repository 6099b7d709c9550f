"""Whether speed was bought with quality: each strategy's held-out PSNR against `single` at equal images seen."""

from __future__ import annotations

import pandas as pd

from harness.report.labels import GROUP

TOLERANCE_DB = 0.1
"""Beyond which a strategy does not train what `single` trains: its rates are marked."""

_TRAINED_ALIKE = [*(key for key in GROUP if key != "scenario"), "images_seen", "training", "seed"]
_MADE_ALIKE = ["strategy", "options"]


def quality_gaps(cells: pd.DataFrame) -> pd.Series:
    """PSNR minus that of `single` on one rank, dB, by cell; null where nothing was trained to tell.

    A trained cell has its own: against the single that saw as many images of the same scene, batch and training. A cell
    that was not trained takes the gap farthest from zero of the trained ones of its strategy and options, on its number
    of ranks if there are any.
    """
    trained = cells[cells["psnr"].notna() & (cells["status"] == "ok")]
    base = trained[(trained["strategy"] == "single") & (trained["ranks"] == 1)]
    psnr = base.groupby(_TRAINED_ALIKE, dropna=False)["psnr"].median().rename("base")
    own = trained["psnr"] - trained.join(psnr, on=_TRAINED_ALIKE)["base"].astype("float64")
    gaps = own.reindex(cells.index)
    known = trained.assign(gap=own, distance=own.abs()).dropna(subset="gap").sort_values("distance")
    untrained = cells["psnr"].isna()
    for keys in ([*_MADE_ALIKE, "ranks"], _MADE_ALIKE):
        worst = known.groupby(keys)["gap"].last().rename("worst")
        found = cells.join(worst.astype("float64"), on=keys)["worst"]
        gaps = gaps.where(gaps.notna() | ~untrained, found)
    return gaps
