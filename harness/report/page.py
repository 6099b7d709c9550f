"""Everything a report says, in order, before it becomes HTML or Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.records.schema import REMARK
from harness.report import pictures
from harness.report.convergence import TOLERANCE_DB
from harness.report.frames import Results
from harness.report.overview import Finding, findings, verdicts
from harness.report.parts import Lines, Plot, Section
from harness.report.quantities import count, duration
from harness.report.reading import notes
from harness.report.sections import (
    ablation,
    batch_rules,
    condition,
    cost_curve,
    environment,
    growth,
    kernels,
    mechanisms,
    quality,
    scaling,
    stages,
    throughput,
    traffic,
    workload,
)
from harness.report.sections.cells import CellRow, cell_rows

_BEFORE_PICTURES = (throughput, cost_curve, scaling, stages, traffic, growth, ablation, batch_rules, quality)
_AFTER_PICTURES = (mechanisms, kernels, workload, condition, environment)


@dataclass
class Page:
    """The report. A section is there only when it has something to show."""

    title: str
    facts: list[tuple[str, str]]
    stand_in: bool = False
    findings: list[Finding] = field(default_factory=list)
    verdicts: list[Lines] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    cells: list[CellRow] = field(default_factory=list)
    all_modelled: bool = False
    """A mark on every cell would say nothing; the head of the page says it then."""
    superseded: int = 0
    before: list[Section] = field(default_factory=list)
    views: list[pictures.ViewPictures] = field(default_factory=list)
    after: list[Section] = field(default_factory=list)
    reading: list[tuple[str, str]] = field(default_factory=list)
    amplified: int = pictures.AMPLIFIED

    @property
    def plots(self) -> list[Plot]:
        return [plot for section in [*self.before, *self.after] for plot in section.plots]

    @property
    def problems(self) -> list[CellRow]:
        return [cell for cell in self.cells if cell.status not in ("ok", "skipped")]

    @property
    def measured(self) -> bool:
        return any(cell.status == "ok" for cell in self.cells)

    @property
    def contents(self) -> list[tuple[str, str]]:
        """Anchor and title of every section, in order."""
        found = [("cells", "What ran where")]
        found += [("problems", "What failed")] if self.problems else []
        found += [(section.name, section.title) for section in self.before]
        found += [("images", "Held-out views")] if self.views else []
        found += [(section.name, section.title) for section in self.after]
        return [*found, ("reading", "How to read it")]


def compose(results: Results) -> Page:
    """The whole report but its pictures' files; call inside drawing.style."""
    cells = results.cells
    if cells.empty:
        return Page("Nothing was measured", [], superseded=results.superseded)
    columns, common, rows = cell_rows(results)
    facts = _facts(results)
    alike = [f"{name} {value}" for name, value in common if name != "commit"]
    rated = cells[(cells["status"] == "ok") & cells["views_per_second"].notna()]
    all_modelled = bool(len(rated)) and bool(rated["modelled"].all())
    if all_modelled:
        alike.append("rates modelled")
    if alike:
        facts.append(("All cells", ", ".join(alike)))
    before, after = (
        [section for section in (module.section(results) for module in modules) if section.parts]
        for modules in (_BEFORE_PICTURES, _AFTER_PICTURES)
    )
    return Page(
        title=", ".join(dict.fromkeys(cells["suite"])),
        facts=facts,
        stand_in=bool(cells["stand_in"].any()),
        findings=findings(cells),
        verdicts=verdicts(results),
        columns=columns,
        cells=rows,
        all_modelled=all_modelled,
        superseded=results.superseded,
        before=before,
        views=pictures.views(results),
        after=after,
        reading=notes(
            cells["scenario"].unique(),
            cells.loc[cells["modelled"], "engine"].map(lambda engine: "virtual" if engine == "virtual" else "paced"),
            [section.name for section in [*before, *after]],
            unequal=bool((cells["quality_gap"].abs() > TOLERANCE_DB).any()),
            remarks=_remarks(results),
        ),
    )


def _remarks(results: Results) -> list[str]:
    """What strategies said of how they ran, each once."""
    said = [record.result.environment.get(REMARK) for _, record in results.records.values() if record.result]
    return [str(remark) for remark in dict.fromkeys(said) if remark]


def _facts(results: Results) -> list[tuple[str, str]]:
    records = [record for _, record in results.records.values()]
    started = sorted(record.started for record in records)
    first, last = (text[:16].replace("T", " ") for text in (started[0], started[-1]))
    if first != last:
        first += "–" + (last[11:] if last[:10] == first[:10] else last)
    return [
        ("Machine", "; ".join(dict.fromkeys(record.machine for record in records))),
        ("Commit", ", ".join(dict.fromkeys(record.commit for record in records))),
        ("Ran", f"{first} UTC"),
        ("Wall time of cells", duration(sum(record.seconds for record in records))),
        (
            "Cells",
            count(len(results.cells)) + ("" if len(records) == len(results.cells) else f", {len(records)} records"),
        ),
    ]
