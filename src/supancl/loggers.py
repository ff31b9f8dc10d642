"""Loggers: what a run writes to metrics.jsonl also goes to Weights & Biases or MLflow (docs/loggers.md)."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from supancl.config import flattened, to_json
from supancl.errors import BadInput, did_you_mean
from supancl.files import make_inner_folder, read_json, reason, write_json
from supancl.reporter import ForwardingReporter, Reporter
from supancl.runs.folder import RunFolder
from supancl.runs.log import row_numbers
from supancl.version import __version__

SECONDS_BETWEEN = 1.0  # rows are collected and sent together: a request per row would slow down training
Numbers = dict[str, float]


class LoggedRun(NamedTuple):
    """What a service gets about a run before its numbers."""

    folder: Path
    name: str
    settings: dict[str, Any]  # of the recipe, by dotted name
    tags: dict[str, str]


class RunLogger(ForwardingReporter, ABC):
    """Passes every report on to `reporter`, and the numbers of every row to a service. Nothing it does ends training.

    RUN/loggers/NAME.json holds the service's id of the run and the last row that was sent. A resumed run continues
    there: rows that the service lacks are sent first, and no row is sent twice.
    """

    name: ClassVar[str] = ""  # of --logger, of the package and of its extra

    def __init__(self, reporter: Reporter | None = None, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(reporter or Reporter())
        self.warn_user = warn or (warnings.warn if reporter is None else reporter.warn)
        self.record, self.run_id = Path(), ""
        self.is_open, self.step, self.steps, self.last_sent = False, 0, 0, 0.0
        self.pending: list[tuple[int, Numbers]] = []
        self.last_row = -1  # sent, or to be sent: see `_add`

    @abstractmethod
    def open(self, run: LoggedRun, run_id: str | None) -> str:
        """Start the service's run, or continue the one with this id; returns its id."""

    @abstractmethod
    def send(self, rows: Sequence[tuple[int, Numbers]]) -> None:
        """Log these steps with their numbers."""

    @abstractmethod
    def close(self, is_finished: bool) -> None:
        """End the service's run; it may continue later if it is not finished."""

    def on_start(self, recipe: Any, data: Any, folder: Path, device: str, step: int, steps: int) -> None:
        super().on_start(recipe, data, folder, device, step, steps)
        self.record, self.step, self.steps = folder / "loggers" / f"{self.name}.json", step, steps
        self.is_open, self.pending = False, []
        tags = {"recipe": recipe.name, "method": recipe.method, "device": device, "supancl": __version__}
        settings = {name: to_json(value) for name, value in flattened(recipe).items() if name != "sources"}
        self._attempt(lambda: self._start(LoggedRun(folder.resolve(), folder.resolve().name, settings, tags)))

    def on_step(self, step: int, row: dict[str, Any] | None) -> None:
        super().on_step(step, row)
        self.step = step
        if row is not None:
            self._log(row)

    def on_epoch(self, row: dict[str, Any]) -> None:
        super().on_epoch(row)
        self._log(row)

    def on_end(self) -> None:
        super().on_end()
        if self.is_open:
            self._attempt(self._end)

    def _start(self, run: LoggedRun) -> None:
        make_inner_folder(self.record.parent)
        record = read_json(self.record)
        run_id = str(record["run_id"]) if re.fullmatch(r"[\w-]{1,100}", str(record.get("run_id", ""))) else None
        self.last_row = int(record.get("last_row", -1)) if run_id else -1
        for row in RunFolder(run.folder).metrics():
            self._add(row)
        if self.step < self.steps or self.pending:  # else the run is finished, and the service has all of it
            self.run_id = self.open(run, run_id)
            self.is_open = True
            self._send()

    def _end(self) -> None:
        self._send()
        self.is_open = False
        self.close(self.step >= self.steps)

    def _log(self, row: dict[str, Any]) -> None:
        if self.is_open:
            self._add(row)
            if time.monotonic() - self.last_sent >= SECONDS_BETWEEN:
                self._attempt(self._send)

    def _add(self, row: dict[str, Any]) -> None:
        """Keep the row to be sent, unless it was sent before: a resumed run repeats steps."""
        kind, step = row["kind"], row["step"]
        number = 2 * step + (kind == "monitor")  # the monitor's row comes after that of its step
        if number > self.last_row:
            self.last_row = number
            numbers = {"epoch": float(row["epoch"]), **row_numbers(row)}
            # a folder of MLflow cannot hold both s_w and s_w/s_t
            self.pending.append((step, {f"{kind}/{name.replace('/', '_over_')}": n for name, n in numbers.items()}))

    def _send(self) -> None:
        self.send(self.pending)
        self.pending, self.last_sent = [], time.monotonic()
        write_json(self.record, {"run_id": self.run_id, "last_row": self.last_row})

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do this; if it fails, warn and leave the service out from now on."""
        try:
            action()
        except Exception as error:  # whatever a service raises, training continues
            self.is_open = False
            with suppress(Exception):
                self.close(False)
            self.warn_user(f"logger {self.name} failed ({reason(error)}); resume with it to send the missing rows")


class WandbLogger(RunLogger):
    """Writes to RUN/wandb, or to WANDB_DIR. Nothing is uploaded unless WANDB_MODE=online is set."""

    name = "wandb"
    run: Any = None

    def open(self, run: LoggedRun, run_id: str | None) -> str:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else wandb reports its errors even when offline
        import wandb

        if "WANDB_DIR" not in os.environ:
            make_inner_folder(run.folder / "wandb")
        self.run = wandb.init(
            id=run_id,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            dir=os.environ.get("WANDB_DIR", str(run.folder)),
            project=os.environ.get("WANDB_PROJECT", "supancl"),
            name=os.environ.get("WANDB_NAME", run.name),
            config=run.settings | run.tags | {"run_folder": run.name},
            tags=[run.tags["recipe"], run.tags["method"]],
            settings=wandb.Settings(console="off", silent=True),
        )
        self.note(f"wandb: {self.run.url or f'wandb sync {os.path.relpath(self.run.settings.sync_dir)}'}")
        return str(self.run.id)

    def send(self, rows: Sequence[tuple[int, Numbers]]) -> None:
        for step, numbers in rows:
            self.run.log(numbers, step=step)

    def close(self, is_finished: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=0 if is_finished else 1)
            self.run = None


class MlflowLogger(RunLogger):
    """Writes to RUN/mlruns, or to MLFLOW_TRACKING_URI."""

    name = "mlflow"
    client: Any = None

    def open(self, run: LoggedRun, run_id: str | None) -> str:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI")
        if not place:
            make_inner_folder(run.folder / "mlruns")
            place = (run.folder / "mlruns").as_uri()
        self.client = MlflowClient(place)
        if run_id is not None:
            self.client.update_run(run_id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "supancl")
            if (experiment := os.environ.get("MLFLOW_EXPERIMENT_ID")) is None:
                with suppress(Exception):  # it is there already
                    self.client.create_experiment(name)
                experiment = self.client.get_experiment_by_name(name).experiment_id
            run_id = str(self.client.create_run(experiment, tags=run.tags, run_name=run.name).info.run_id)
            texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in run.settings.items()}
            self.client.log_batch(run_id, params=[Param(name, text) for name, text in texts.items()])
        self.note(f"mlflow: run {run_id} in {place}")
        return run_id

    def send(self, rows: Sequence[tuple[int, Numbers]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, number, now, step) for step, numbers in rows for name, number in numbers.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, is_finished: bool) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id, status="FINISHED" if is_finished else "KILLED")
            self.client = None


LOGGERS: dict[str, type[RunLogger]] = {logger.name: logger for logger in (WandbLogger, MlflowLogger)}


def open_loggers(
    names: Iterable[str], reporter: Reporter | None = None, warn: Callable[[str], None] | None = None
) -> Reporter:
    """The reporter with these loggers in front of it; `warn` gets their warnings, without it the reporter does.

    An unknown logger is refused, and one whose package is missing. Nothing is imported.
    """
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise BadInput(f"logger {name}: no such logger{did_you_mean(name, LOGGERS)}")
        if find_spec(name) is None:
            raise BadInput(f"logger {name}: the package {name} is not installed; pip install 'supancl[{name}]'")
        reporter = LOGGERS[name](reporter, warn)
    return reporter or Reporter()
