"""Damaged and missing rows of metrics.jsonl are noticed: readers refuse them, a resumed run sets them aside."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from supancl import BadInput, pretrain
from supancl.training.pretrain import Run
from supancl.weights.log_rows import read_rows, seal_row
from supancl.weights.run_folder import RunFolder
from tests.files import assert_mentions, mentions
from tests.tiny import Notes, tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(tiny_recipe("supsiam"), tiny_data(), tmp_path_factory.mktemp("log") / "run")


DAMAGES = {
    "a digit": lambda lines: [*lines[:2], lines[2].replace("0.", "1.", 1), *lines[3:]],
    "half a line": lambda lines: [*lines[:2], lines[2][:20], *lines[3:]],
    "a row is gone": lambda lines: [*lines[:2], *lines[3:]],
    "a row twice": lambda lines: [*lines[:3], *lines[2:]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_by_readers_and_set_aside_on_resume(damage: str, finished: Run, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("".join(f"{line}\n" for line in DAMAGES[damage](lines)))
    damaged = log.read_bytes()
    with pytest.raises(BadInput, match=mentions(log, "line")):
        RunFolder(run).metrics()
    assert "damaged" in RunFolder(run).describe_early_end(RunFolder(run).read_recipe()[0])
    notes = Notes()
    rows = pretrain(None, tiny_data(), run, resume=True, reporter=notes).metrics
    (warning,) = notes.warnings
    assert_mentions(warning, log, "metrics.damaged.jsonl")
    assert (run / "metrics.damaged.jsonl").read_bytes() == damaged
    assert all(row in finished.metrics for row in rows)
    lost = [json.loads(line)["lost"] for line in log.read_text().splitlines() if '"gap"' in line]
    assert len(rows) + sum(lost) >= len(finished.metrics)


def test_the_torn_last_line_of_a_killed_run_is_no_damage(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text(seal_row({"kind": "train", "step": 1}, 0) + "\n" + seal_row({"kind": "train", "step": 2}, 1)[:-4])
    read = read_rows(log, {"step": int})
    assert ([row["step"] for row in read.rows], read.damage, read.next_number) == ([1], [], 1)


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
