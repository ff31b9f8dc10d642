"""metrics.jsonl and TensorBoard tell the same course, also where steps are done again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from supancl import pretrain
from supancl.runs.folder import RunFolder
from supancl.runs.log import MetricsLog
from tests.tiny import poisoned, tiny_data, tiny_recipe

KINDS = {"train": "loss", "monitor": "knn"}


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """TensorBoard tells of every purge; and reads files of one second by a number that is not padded."""
    logging.disable(logging.WARNING)
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    yield
    logging.disable(logging.NOTSET)


def drawn(run: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(run / "tensorboard"))
    read.Reload()
    return [(event.step, event.value) for event in read.Scalars(tag)]


def assert_same_course(run: Path) -> None:
    rows = RunFolder(run).metrics()
    for kind, name in KINDS.items():
        logged = [(row["step"], row[name]) for row in rows if row["kind"] == kind and row[name] is not None]
        curve = drawn(run, f"{kind}/{name}")
        assert [step for step, _ in curve] == [step for step, _ in logged]
        assert [value for _, value in curve] == pytest.approx([value for _, value in logged])


def test_a_curve_does_not_double_back_after_a_rollback(monkeypatch, tmp_path: Path) -> None:
    poisoned(monkeypatch, {1, 7})
    pretrain(tiny_recipe("supbyol", train__on_nan="rollback"), tiny_data(), tmp_path / "run")
    assert [step for step, _ in drawn(tmp_path / "run", "train/loss")] == [1, 3, 4, 5, 6, 7, 9, 10]
    assert_same_course(tmp_path / "run")


def test_rows_of_a_run_that_was_killed_after_its_checkpoint_are_drawn_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    def write(log: MetricsLog, steps: range, loss: float) -> None:
        for step in steps:
            log.write({"kind": "train", "step": step, "epoch": 0, "loss": loss})
        log.close()

    write(MetricsLog(folder, None), range(1, 9), 1.0)
    folder.keep_metrics_until(5)
    write(MetricsLog(folder, 5), range(6, 8), 2.0)
    expected = [(step, 1.0 if step <= 5 else 2.0) for step in range(1, 8)]
    assert drawn(tmp_path, "train/loss") == expected
    assert [(row["step"], row["loss"]) for row in folder.metrics()] == expected
