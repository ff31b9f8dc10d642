"""MLflow: `supancl pretrain ... --logger mlflow`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from supancl.loggers.run_logger import LoggedRun, Numbers, RunLogger, shorten

MAX_VALUE_LENGTH = 500  # of a setting; newer servers take 6,000
BATCH = 100  # settings in a request; there may be 1,000 metrics


class MlflowLogger(RunLogger):
    """Writes to RUN/mlruns, or to MLFLOW_TRACKING_URI."""

    name = "mlflow"
    client: Any = None

    def open(self, run: LoggedRun, run_id: str | None) -> str:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or run.make_folder("mlruns").as_uri()
        self.client = MlflowClient(place)
        if run_id is not None:
            self.client.update_run(run_id, status="RUNNING")
        else:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or self._experiment()
            run_id = str(self.client.create_run(experiment, tags=run.tags, run_name=run.name).info.run_id)
            params = [Param(name, shorten(value, MAX_VALUE_LENGTH)) for name, value in run.settings.items()]
            for start in range(0, len(params), BATCH):
                self.client.log_batch(run_id, params=params[start : start + BATCH])
        self.note(f"mlflow: run {run_id} in {place}")
        return run_id

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "supancl")
        if self.client.get_experiment_by_name(name) is None:
            with suppress(Exception):  # another run of a sweep may have made it in the meantime
                self.client.create_experiment(name)
        return str(self.client.get_experiment_by_name(name).experiment_id)

    def send(self, rows: Sequence[tuple[int, Numbers]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, number, now, step) for step, numbers in rows for name, number in numbers.items()]
        for start in range(0, len(metrics), BATCH):
            self.client.log_batch(self.record.run_id, metrics=metrics[start : start + BATCH])

    def close(self, is_finished: bool) -> None:
        if self.client is not None:
            self.client.set_terminated(self.record.run_id, status="FINISHED" if is_finished else "KILLED")
            self.client = None
