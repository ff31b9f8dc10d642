"""`pretrain --report-every N`: the report of a run, written again and again while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supancl.files import check_no_link, reason, write_text
from supancl.reporter import ForwardingReporter, Reporter
from supancl.reports.report import report_page
from supancl.reports.run_record import read_record
from supancl.reports.training_images import TrainingImages, describe_training_images

PAGE = "report.html"  # in the run folder


class LiveReport(ForwardingReporter):
    """Passes every report on to `reporter`, and writes RUN/report.html every `every` epochs and at the end.

    A page that cannot be written is a warning, given once; training continues.
    """

    def __init__(self, reporter: Reporter, every: int) -> None:
        super().__init__(reporter)
        self.every = every
        self.folder: Path | None = None
        self.images = TrainingImages()
        self.epochs_written = 0
        self.has_warned = False

    def on_start(self, recipe: Any, data: Any, folder: Path, device: str, step: int, steps: int) -> None:
        self.folder, self.images = folder, TrainingImages()
        try:
            self.images = describe_training_images(data, recipe)
        except Exception as error:  # of a plugin's views, for example
            self._warn(error)
        self._write(is_running=True)
        self.reporter.on_start(recipe, data, folder, device, step, steps)

    def on_step(self, step: int, row: dict[str, Any] | None) -> None:
        self.reporter.on_step(step, row)
        if row is not None:  # epochs without a check of the monitor
            self._refresh(row["epoch"])

    def on_epoch(self, row: dict[str, Any]) -> None:
        self.reporter.on_epoch(row)
        self._refresh(row["epoch"] + 1)

    def on_end(self) -> None:
        self.reporter.on_end()
        self._write(is_running=False)

    def _refresh(self, epochs_done: int) -> None:
        """Write the page if another `every` epochs have ended since it was written."""
        if epochs_done // self.every != self.epochs_written // self.every:
            self.epochs_written = epochs_done
            self._write(is_running=True)

    def _write(self, is_running: bool) -> None:
        if self.folder is None:
            return
        try:
            record = read_record(self.folder, is_running)
            path = self.folder / PAGE
            check_no_link(path)
            name = self.folder.resolve().name
            write_text(path, report_page({name: record}, {name: self.images}, is_live=record.is_running))
        except Exception as error:  # a page is never worth a run
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self.has_warned:
            self.has_warned = True
            self.reporter.warn(
                f"report_every: {self.folder}/{PAGE} is not up to date ({reason(error)}); training goes on"
            )
