"""What a run shows while it runs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from harness.records.schema import Measurement, Record
from harness.runner.progress import ProgressFile
from harness.suite.cell import Cell

_STYLES = {"ok": "green", "skipped": "dim", "invalid": "yellow"}


def label(cell: Cell, repeat: int = 0) -> str:
    """What a line calls a cell: its name, or what tells it apart."""
    ranks = f"{cell.ranks} rank{'s' if cell.ranks != 1 else ''}"
    words = [cell.strategy, ranks, cell.scenario] if cell.name is None else [cell.name, cell.strategy, ranks]
    words += [f"{key} {value}" for key, value in cell.options.items()] if cell.name is None else []
    if cell.seed:
        words.append(f"seed {cell.seed}")
    if cell.repeats > 1:
        words.append(f"repeat {repeat + 1}/{cell.repeats}")
    return ", ".join(words)


def headline(record: Record) -> str:
    """The figures worth a line: views/s and quality, or the step's time; empty when nothing was measured."""
    measurements = record.result.measurements if record.result else []
    job = [m for m in measurements if m.stage is None and m.place is None]

    def last(metric: str) -> Measurement | None:
        found = [m for m in job if m.metric == metric]
        return max(found, key=lambda m: m.images_seen or 0) if found else None

    words = []
    if (rate := last("views_per_second")) is not None:
        words.append(f"{rate.value:.3g} views/s")
    elif (step := last("step_seconds")) is not None:
        words.append(f"{step.value * 1e3:.3g} ms a step")
    if (psnr := last("psnr")) is not None:
        words.append(f"PSNR {psnr.value:.2f} dB")
    return ", ".join(words)


class Display:
    """Shows a run of `total` repeats of cells on the console. A context manager: the bars go when it ends."""

    def __init__(self, console: Console, total: int):
        self._console = console
        self._total = total
        self._ended = 0
        self._cell: TaskID | None = None
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._cells = self._bars.add_task("cells", total=total, figures="")

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def start(self, name: str) -> None:
        """A cell has been started."""
        if self._bars is None:
            self.say(f"[{self._ended + 1}/{self._total}] {name} ...")
        else:
            self._name = name
            self._cell = self._bars.add_task(name, total=None, figures="")

    def progress(self, progress: ProgressFile) -> None:
        """The running cell has said something."""
        if self._bars is None or self._cell is None:
            return
        step = progress.step
        if step is None:
            self._bars.reset(
                self._cell, total=None, description=f"{escape(self._name)}: {escape(progress.phase)}", figures=""
            )
            return
        figures = [] if step.views_per_second is None else [f"{step.views_per_second:.3g} views/s"]
        figures += [] if step.loss is None else [f"loss {step.loss:.4f}"]
        self._bars.update(
            self._cell,
            total=step.total,
            completed=step.done,
            description=escape(self._name),
            figures=", ".join(figures),
        )

    def end(self, name: str, record: Record) -> None:
        """The cell has ended (or was skipped): one line with its headline, or with why not."""
        self._ended += 1
        if self._bars is not None:
            self._bars.update(self._cells, completed=self._ended)
            if self._cell is not None:
                self._bars.remove_task(self._cell)
                self._cell = None
        style = _STYLES.get(record.status, "red")
        figures = "; ".join(part for part in (headline(record), record.reason or "") if part)
        seconds = f"  ({record.seconds:.1f} s)" if record.seconds else ""
        self._console.print(
            f"{escape(f'[{self._ended}/{self._total}]')} {escape(name)}  "
            f"[{style}]{record.status}[/{style}]  {escape(figures)}{seconds}",
            highlight=False,
            soft_wrap=True,
        )
