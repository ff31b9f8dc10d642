"""Weights & Biases and MLflow, the real packages: what was logged is read back from their own files."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supancl import loggers, pretrain
from supancl.loggers import MlflowLogger, WandbLogger
from supancl.runs.folder import RunFolder
from tests.helpers import Notes, tiny_data, tiny_recipe

VARIABLES = ("WANDB_", "MLFLOW_")


@pytest.fixture(autouse=True)
def fresh_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variables and no home of the user's; what a logger sets is gone after the test."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        del os.environ[name]
    os.environ["HOME"] = str(tmp_path / "home")
    monkeypatch.setattr(loggers, "SECONDS_BETWEEN", 0.0)
    yield
    import wandb

    wandb.teardown()  # its process
    os.environ.clear()
    os.environ.update(before)


def rows_by_step(folder: Path) -> dict[int, dict[str, float]]:
    """metrics.jsonl by step, with the names that services show."""
    expected: dict[int, dict[str, float]] = {}
    for row in RunFolder(folder).metrics():
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float)) and name != "step"}
        names = {f"{row['kind']}/{name.replace('/', '_over_')}": value for name, value in numbers.items()}
        expected.setdefault(row["step"], {}).update(names)
    return expected


BLOCK, HEADER = 32768, 7


def read_records(file: Path) -> list[Any]:
    """A .wandb file: a header, then blocks of 32 KiB with records in the framing of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts, records = file.read_bytes(), HEADER, b"", []
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:  # padding at the end of a block
            position += BLOCK - position % BLOCK
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records


def read_history(file: Path) -> list[dict[str, Any]]:
    """The logged rows, each with its `_step`."""
    rows = []
    for record in read_records(file):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({"_step": record.history.step.num, **items})
    return rows


def read_run(file: Path) -> Any:
    """The record of the run: id, name, project, tags, config."""
    return next(record.run for record in read_records(file) if record.WhichOneof("record_type") == "run")


def wandb_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in wandb_files(folder) for row in read_history(file)]


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    return client, client.get_run(json.loads((folder / "loggers" / "mlflow.json").read_text())["run_id"])


def mlflow_rows(folder: Path) -> dict[int, dict[str, float]]:
    """The logged rows; a step that was logged twice is an error."""
    client, run = mlflow_run(folder)
    rows: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            row = rows.setdefault(metric.step, {})
            assert name not in row, (metric.step, name)
            row[name] = metric.value
    return rows


class Crash(Notes):
    def on_step(self, step: int, row: Any) -> None:
        if step == 8:
            raise KeyError("crash")


def test_a_command_logs_to_both_offline_and_goes_on_after_a_crash(tmp_path: Path, capsys: Any) -> None:
    run, crash = tmp_path / "run", Crash()
    with pytest.raises(KeyError, match="crash"):
        pretrain(tiny_recipe(), tiny_data(), run, reporter=MlflowLogger(WandbLogger(crash)))
    assert crash.warnings == []
    assert [row["_step"] for row in wandb_rows(run)] == list(range(1, 8))  # its checkpoint is at step 5
    assert mlflow_run(run)[1].info.status == "KILLED"
    notes = Notes()
    pretrain(None, tiny_data(), run, resume=True, reporter=MlflowLogger(WandbLogger(notes)))
    assert notes.warnings == []
    expected = rows_by_step(run)
    first, second = map(read_run, wandb_files(run))
    assert first.run_id == second.run_id
    config = {item.key: json.loads(item.value_json) for item in second.config.update}
    assert (config["loss.alpha"], config["train.epochs"], config["run_folder"]) == (0.5, 2, "run")
    info, data = mlflow_run(run)[1].info, mlflow_run(run)[1].data
    assert (info.status, info.run_name, data.params["loss.alpha"]) == ("FINISHED", "run", "0.5")

    in_wandb = {row["_step"]: {name: x for name, x in row.items() if name[0] != "_"} for row in wandb_rows(run)}
    for logged in (in_wandb, mlflow_rows(run)):
        assert logged.keys() == expected.keys() == set(range(1, 11))
        for step in (1, 5, 10):  # repeated steps have the numbers of their first time, but for the speed
            assert logged[step] == pytest.approx(expected[step])


def test_nothing_leaves_the_machine_unless_a_variable_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    """Sockets of this process are refused, except for local ones; wandb's process is told not to report."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)  # a user who is logged in
    logger = WandbLogger()
    pretrain(tiny_recipe(train__epochs=1), tiny_data(), tmp_path / "run", reporter=MlflowLogger(logger))
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert wandb_files(tmp_path / "run")  # an offline run
