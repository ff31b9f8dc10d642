"""Lines of metrics.jsonl that are no rows are left out with a warning, and dropped when the run is resumed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from supancl import pretrain
from supancl.runs.folder import RunFolder
from supancl.runs.log import read_rows
from supancl.training.run import Run
from tests.files import assert_mentions, mentions
from tests.tiny import Notes, tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(tiny_recipe("supsiam"), tiny_data(), tmp_path_factory.mktemp("log") / "run")


@pytest.mark.parametrize("line", ["", '{"kind": "train", "step', "\0" * 40, "[" * 100_000, '{"kind": "train"}'])
def test_a_line_that_is_no_row_is_left_out_with_a_warning(line: str, finished: Run, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:2], line, *lines[3:], ""]))
    rows = [*finished.metrics[:2], *finished.metrics[3:]]
    with pytest.warns(UserWarning, match=mentions(log, "left out: 3")):
        assert RunFolder(run).metrics() == rows
    notes = Notes()
    assert pretrain(None, tiny_data(), run, resume=True, reporter=notes).metrics == rows
    assert_mentions(" ".join(notes.warnings), log, "left out: 3")
    assert log.read_text().splitlines() == [*lines[:2], *lines[3:]]


def test_the_torn_last_line_of_a_killed_run_is_no_damage(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"kind": "train", "step": 1}\n{"kind": "train", "st')
    rows, damage = read_rows(log)
    assert ([row["step"] for row in rows], damage) == ([1], "")


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
