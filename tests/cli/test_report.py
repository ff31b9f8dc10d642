"""`supancl report`, and `pretrain --report-every`: the whole way from the command to the page."""

from __future__ import annotations

import json

import pytest
from supancl.reports.live_report import LiveReport

from supancl import pretrain
from supancl.reporter import Reporter
from supancl.runs.folder import RunFolder
from tests.files import TINY, archive, supancl
from tests.tiny import Notes, assert_same_bits, final_state, tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of two epochs on a small archive."""
    root = tmp_path_factory.mktemp("trained")
    archive(root / "data.npz")
    from supancl.cli import main

    words = ["--data", root / "data.npz", *TINY, "--epochs", "2", "--report-every", "1", "--out", root / "runs" / "one"]
    assert main(list(map(str, ["pretrain", "digits.supsiam", *words, "--quiet"]))) == 0
    return root


def state_on(page: str) -> str:
    return page.partition('data-state="')[2].partition('"')[0]


def test_a_run_keeps_its_page_up_to_date(trained):
    page = (trained / "runs" / "one" / "report.html").read_text()
    assert state_on(page) != "running"
    assert "location.reload" not in page
    assert "image/webp" in page


def test_a_report_of_one_run_lies_in_its_folder(trained, capsys):
    run = trained / "runs" / "one"
    (run / "report.html").unlink()
    said = supancl(capsys, "report", run, "--json", "-")
    assert said.code == 0
    result = json.loads(said.out)
    assert result["report"] == str(run / "report.html")
    (row,) = result["runs"]
    assert row["run"] == str(run)
    page = (run / "report.html").read_text()
    assert row["state"] == state_on(page)
    assert "Training images by class" in page
    losses = [row["loss"] for row in RunFolder(run).metrics() if row["kind"] == "train"]
    assert all(str(loss) in page for loss in losses)


def test_a_folder_of_runs_gives_one_page(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = supancl(capsys, "report", trained / "runs", trained / "runs" / "one", "--no-data")
    assert said.code == 0
    assert (trained / "runs" / "one" / "report.html").exists()  # it holds one run
    assert "Training images by class" not in (trained / "runs" / "one" / "report.html").read_text()


class Killed(Exception):
    pass


class Watch(Reporter):
    """Notes the state that the page has at the end of each epoch, before the page is written again."""

    def __init__(self, page, ends_after=9):
        self.page, self.states, self.ends_after = page, [], ends_after

    def on_epoch(self, row):
        text = self.page.read_text()
        self.states.append((state_on(text), "location.reload" in text))
        if len(self.states) == self.ends_after:
            raise Killed


def test_the_page_is_written_every_n_epochs_and_changes_nothing(tmp_path):
    """It says that the run trains, until it has ended; and the weights are those of a run without it."""
    watch = Watch(tmp_path / "a" / "report.html")
    pretrain(tiny_recipe(train__epochs=3), tiny_data(), tmp_path / "a", reporter=LiveReport(watch, 2))
    assert watch.states == [("running", True)] * 3
    assert state_on(watch.page.read_text()) != "running"
    pretrain(tiny_recipe(train__epochs=3), tiny_data(), tmp_path / "b")
    assert_same_bits(final_state(tmp_path / "a"), final_state(tmp_path / "b"))


def test_a_page_that_cannot_be_written_is_one_warning(tmp_path):
    class Block(Notes):
        def on_start(self, recipe, data, folder, *position):
            (folder / "report.html").unlink()
            (folder / "report.html").mkdir()

    notes = Block()
    run = pretrain(tiny_recipe(train__epochs=3), tiny_data(), tmp_path / "a", reporter=LiveReport(notes, 1))
    assert run.metrics[-1]["epoch"] == 2
    (warning,) = notes.warnings
    assert "report.html" in warning


def test_a_run_that_collapses_records_why_until_it_continues(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr("supancl.training.monitor.COLLAPSED_STD", 2.0)  # whatever the targets are
    words = ("--data", archive(tmp_path / "data.npz"), *TINY, "--epochs", "2", "--set", "train.log_every=1")
    said = supancl(capsys, "pretrain", "digits.supsiam", *words, "--on-collapse", "stop", "--out", run)
    assert said.code == 3
    stopped = json.loads((run / "stopped.json").read_text())
    assert stopped["exit_code"] == 3
    assert stopped["reason"] in said.err
    assert supancl(capsys, "pretrain", "--resume", "--on-collapse", "warn", "--out", run).code == 0
    assert not (run / "stopped.json").exists()


def test_a_run_that_ends_with_an_error_records_it_and_continues(tmp_path):
    run = tmp_path / "run"

    class Fail(Notes):
        def on_epoch(self, row):
            raise RuntimeError("the disk of the log is gone")

    with pytest.raises(RuntimeError, match="the disk"):
        pretrain(tiny_recipe(train__epochs=3), tiny_data(), run, reporter=Fail())
    assert "an error: the disk of the log is gone" in json.loads((run / "stopped.json").read_text())["reason"]
    assert pretrain(None, tiny_data(), run, resume=True).metrics[-1]["epoch"] == 2
    assert not (run / "stopped.json").exists()
