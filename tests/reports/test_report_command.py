"""`supancl report`: the whole way from the command to the page, and what a run that stopped says."""

from __future__ import annotations

import json

import pytest

from supancl import pretrain
from supancl.runs.folder import RunFolder
from tests.helpers import TINY, Notes, archive, supancl, tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of two epochs on a small archive."""
    root = tmp_path_factory.mktemp("trained")
    archive(root / "data.npz")
    from supancl.cli import main

    words = ["--data", root / "data.npz", *TINY, "--epochs", "2", "--out", root / "runs" / "one"]
    assert main(list(map(str, ["pretrain", "digits.supsiam", *words, "--quiet"]))) == 0
    return root


def state_on(page: str) -> str:
    return page.partition('data-state="')[2].partition('"')[0]


def test_a_report_of_one_run_lies_in_its_folder(trained, capsys):
    run = trained / "runs" / "one"
    said = supancl(capsys, "report", run, "--json", "-")
    assert said.code == 0
    result = json.loads(said.out)
    assert result["report"] == str(run / "report.html")
    (row,) = result["runs"]
    assert row["run"] == str(run)
    page = (run / "report.html").read_text()
    assert row["state"] == state_on(page)
    assert "No predictions yet" in page
    losses = [row["loss"] for row in RunFolder(run).metrics() if row["kind"] == "train"]
    assert all(str(loss) in page for loss in losses)


def test_a_folder_of_runs_gives_one_page(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = supancl(capsys, "report", trained / "runs", trained / "runs" / "one", "--no-data")
    assert said.code == 0
    assert (trained / "runs" / "one" / "report.html").exists()  # it holds one run
    assert "No predictions" not in (trained / "runs" / "one" / "report.html").read_text()


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
