"""metrics.jsonl: each step once, what is no row is left out with a warning, and TensorBoard shows the same."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from supancl import pretrain
from supancl.reporter import report_to
from supancl.runs.folder import RunFolder
from supancl.runs.log import MetricsLog
from tests.helpers import Notes, assert_mentions, tiny_data, tiny_recipe
from tests.test_resume import Crash, CrashAt


def row_of(step: int) -> bytes:
    return json.dumps({"kind": "train", "step": step, "epoch": 0}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 4, "lo', b"\x00\x00\x00", b"4", b"[]", b"\n\n", b"\x00\x00" + row_of(3), b"\xff}", b"{}",
        b'{"step": 3, "epoch": 0}', b'{"kind": "train", "step": 3, "epoch": null}', b"[" * 100_000 + b"{}",
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_dropped_with_a_warning_and_the_others_stay(tmp_path: Path, line: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_bytes(row_of(1) + b"\n" + line + b"\n" + row_of(2) + b"\n" + line)
    with report_to(notes := Notes()):
        folder.keep_metrics_until(5)
    assert_mentions(notes.warnings[0], "metrics.jsonl", "left out")
    assert [row["step"] for row in folder.metrics()] == [1, 2]
    assert folder.metrics_file.read_bytes() == row_of(1) + b"\n" + row_of(2) + b"\n"


def test_a_resumed_run_logs_every_step_once(tmp_path: Path) -> None:
    recipe, data = tiny_recipe(train__checkpoint_every=3), tiny_data()
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Crash):
        pretrain(recipe, data, folder.path, reporter=CrashAt(4))
    assert [row["step"] for row in folder.metrics()] == [1, 2, 3, 4]
    with open(folder.metrics_file, "a") as file:
        file.write('{"kind": "train", "st')  # killed while writing: no damage
    pretrain(None, data, folder.path, resume=True)
    assert [row["step"] for row in folder.metrics() if row["kind"] == "train"] == list(range(1, 11))


def test_rows_are_synced_before_the_checkpoint_that_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def note_sync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fsync", note_sync)
    pretrain(tiny_recipe("supsiam", train__epochs=1), tiny_data(), tmp_path / "run")
    checkpoint = next(i for i, name in enumerate(events) if "step-" in name)
    assert "metrics.jsonl" in events[:checkpoint]


# --- TensorBoard ------------------------------------------------------------------------------------------------------


@pytest.fixture
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


@pytest.mark.usefixtures("calm")
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
