"""`regress`: measures what a baseline or another tree is to be compared with, and judges it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from harness.errors import UserError
from harness.evidence.alternation import PAIRS, Alternation, why_not
from harness.evidence.baseline import Baseline, read_baseline, write_baseline
from harness.evidence.measured import MeasuredCell, grouped, read
from harness.evidence.regression import CellResult, confirmed, judge_cells, judge_times, stale_cells, suspects
from harness.evidence.trees import other, present
from harness.evidence.verdicts import Judgement, Verdict
from harness.runner.run import run_suite
from harness.suite.plan import Plan, plan

SUITE = Path("suites/regression.yaml")
OUT = Path("results/runs/regress")
OF_BASELINE = "baseline"
"""`--against baseline`: the commit that the baseline names."""


@dataclass(frozen=True)
class Request:
    """What `regress` is asked for; its options say what each field means."""

    baseline: str | None = None
    against: str | None = None
    suite: Path | None = None
    of: Path | None = None
    accept: str | None = None
    code_only: bool = False
    pairs: int = PAIRS
    equal_code: bool = False
    out: Path = OUT


@dataclass(frozen=True)
class Verdicts:
    """What came of it. title: what was held against what. accepted: folder of the baseline that was written."""

    title: str
    results: list[CellResult] = field(default_factory=list)
    accepted: Path | None = None


def regress(request: Request, console: Console) -> Verdicts:
    """Measure and judge. Raises UserError for what cannot be asked together, and for what is not there."""
    _check(request)
    baseline = _baseline(request)
    if request.code_only:
        assert baseline is not None
        tree = present()
        now = {cell.key[0]: tree.code_id(cell.settings["strategy"]) for cell in baseline.cells}
        return Verdicts(f"baseline {baseline.name}: code only", stale_cells(baseline.cells, now))
    suite = request.suite or (Path(baseline.suite) if baseline and baseline.suite else SUITE)
    if request.against is not None:
        return _against(request, baseline, suite, console)
    assert request.baseline is not None

    def again(slow: list[str]) -> list[MeasuredCell]:
        if request.of is not None:
            return []
        return _run(plan(suite, only=[f"cell={','.join(slow)}"]), request.out / "again", console)

    cells = read([request.of]) if request.of is not None else _run(plan(suite), request.out, console)
    results: list[CellResult] = []
    if baseline is not None:
        times = _stored_times(baseline, cells, again)
        results = judge_cells(baseline.cells, cells, times)
    accepted = _accept(request, cells, suite)
    return Verdicts(f"baseline {request.baseline}", results, accepted)


def _check(request: Request) -> None:
    given = {"--against": request.against, "--of": request.of, "--accept": request.accept}
    if request.baseline is None:
        if request.against is None:
            raise UserError("regress: expected --baseline NAME, --against REV or both")
        if request.against == OF_BASELINE or request.accept is not None or request.code_only:
            option = "--against baseline" if request.against == OF_BASELINE else "--accept or --code-only"
            raise UserError(f"{option}: expected --baseline NAME beside it")
    if request.code_only and any(given.values()):
        raise UserError("--code-only: runs nothing; expected no --against, --of or --accept beside it")
    if request.of is not None and request.against is not None:
        raise UserError("--of: takes records that are there; expected no --against, which makes its own")
    if request.accept is not None and not request.accept.strip():
        raise UserError("--accept: value is empty; expected the reason in a sentence")


def _baseline(request: Request) -> Baseline | None:
    """The one that is asked for; None for the first that is to be accepted."""
    if request.baseline is None:
        return None
    try:
        return read_baseline(request.baseline)
    except UserError:
        if request.accept is None or request.against == OF_BASELINE:
            raise
        return None


def _run(planned: Plan, out: Path, console: Console) -> list[MeasuredCell]:
    return grouped(run_suite(planned, out, fresh=True, console=console, report=False).records)


def _accept(request: Request, cells: Sequence[MeasuredCell], suite: Path) -> Path | None:
    if request.accept is None:
        return None
    assert request.baseline is not None
    return write_baseline(request.baseline, cells, request.accept, None if request.of else suite.as_posix())


def _stored_times(
    baseline: Baseline, cells: Sequence[MeasuredCell], again: Callable[[list[str]], Sequence[MeasuredCell]]
) -> dict[str, Judgement]:
    """Judgements of time against the baseline's, on GPUs only: on a shared CPU stored times say nothing."""
    stored = [cell for cell in baseline.cells if cell.settings["device"] == "cuda" and cell.ok]
    times = judge_times(stored, cells)
    if not (doubted := suspects(times)):
        return times
    return confirmed(times, judge_times(stored, again(doubted)))


def _against(request: Request, baseline: Baseline | None, suite: Path, console: Console) -> Verdicts:
    assert request.against is not None
    revision = request.against
    if baseline is not None and revision == OF_BASELINE:
        revision = baseline.commit
    planned = plan(suite)
    unable = {p.cell_id: (p.cell.name or p.cell.strategy, why) for p in planned.cells if (why := why_not(p))}
    able = [p for p in planned.cells if p.cell_id not in unable]
    with other(revision) as tree:
        turns = Alternation(planned, tree, present(), request.out, lambda text: console.print(text, highlight=False))
        equal = [p for p in able if not request.equal_code and turns.equal_code(p)]
        changed = [p for p in able if p not in equal]
        base, new = turns.run(changed, request.pairs) if changed else ([], [])
        times = judge_times(base, new)
        if doubted := suspects(times):
            console.print(f"slower, it seems: {len(doubted)}; run again", highlight=False)
            repeated = turns.run([p for p in changed if p.cell_id in doubted], request.pairs)
            times = confirmed(times, judge_times(*repeated))
        alike = turns.once(equal)
    times |= {cell.key[0]: Judgement(Verdict.same, "equal code in both trees") for cell in alike}
    new = [*new, *alike]
    if baseline is not None:
        results = judge_cells(baseline.cells, new, times, unable)
    else:
        results = judge_cells([*base, *alike], new, times, unable, strict_base=False)
    title = f"against {tree.name}" + (f" ({tree.commit})" if tree.commit != tree.name else "")
    if baseline is not None:
        title += f", baseline {baseline.name}"
    return Verdicts(title, results, _accept(request, new, suite))
