"""`supancl runs`: what is there, how it stands, and what may be deleted."""

import json
import shutil
from pathlib import Path

import pytest

from supancl import pretrain
from supancl.reports.listings import describe_run, find_listed_runs
from supancl.runs.folder import RunFolder
from tests.helpers import assert_mentions, supancl, tiny_data, tiny_recipe
from tests.test_resume import Crash, CrashAt


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Three runs: finished, stopped, and one whose recipe.json is gone."""
    root = tmp_path_factory.mktemp("made") / "runs"
    recipe = tiny_recipe()
    pretrain(recipe, tiny_data(), root / "finished")
    with pytest.raises(Crash):
        pretrain(recipe, tiny_data(), root / "deep" / "stopped", reporter=CrashAt(7))
    shutil.copytree(root / "finished", root / "damaged")
    (root / "damaged" / "recipe.json").unlink()
    return root


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "runs")


def states(root: Path) -> dict[str, str]:
    return {str(run["path"].relative_to(root)): run["state"] for run in find_listed_runs(root)}


def test_every_run_is_listed_with_its_state(runs: Path) -> None:
    assert states(runs) == {"damaged": "damaged", "deep/stopped": "stopped", "finished": "finished"}
    run = describe_run(runs / "finished")
    assert (run["recipe"], run["data"], run["epochs_done"], run["epochs"]) == ("tiny.supsiam", "arrays", 2, 2)
    assert run["knn"] == RunFolder(runs / "finished").metrics()[-1]["knn"]
    assert describe_run(runs / "deep" / "stopped")["epochs_done"] == 1
    (runs / "deep" / "stopped" / "metrics.jsonl").write_text("")
    assert describe_run(runs / "deep" / "stopped")["epochs_done"] == 0
    with RunFolder(runs / "deep" / "stopped").claim(resume=True):
        assert states(runs)["deep/stopped"] == "running"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"recipe": 3}', b'{"recipe": {"name": 1}}', b"\xff", b"[" * 9999]
)
def test_nothing_in_a_folder_makes_the_list_fail(runs: Path, content: bytes) -> None:
    for name in ("recipe.json", "metrics.jsonl", "finished.json"):
        shutil.copytree(runs / "finished", runs / name)
        (runs / name / name).write_bytes(content)
    found = states(runs)
    assert found["recipe.json"] == "damaged"
    assert found["metrics.jsonl"] in ("finished", "damaged")
    assert found["finished.json"] == "stopped"


def test_the_list_and_as_json(runs: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = supancl(capsys, "runs", "--json", "runs.json")
    assert said.code == 0
    assert_mentions(said.out, "finished", "tiny.supsiam", "arrays", "stopped", "1/2", "damaged", "recipe.json")
    assert [run["state"] for run in json.loads(Path("runs.json").read_text())["runs"]] == list(states(runs).values())
