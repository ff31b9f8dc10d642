"""Run folders that supancl 0.1.0 wrote (tests/kept/make.py) go on, are judged and are tabulated as they were then."""

import functools
import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from supancl import load_encoder, pretrain
from supancl.cli import main
from supancl.weights.run_folder import RunFolder

from .detect.drawn import write_voc
from .kept.make import RUNS, narrow_resnet, study_words

KEPT = Path(__file__).parent / "kept" / "0.1.0"
EXPECTED = json.loads((KEPT / "expected.json").read_text())
LINEAR_NOW = 43.33  # percent, by the code of today
STOPPED = [name for name, (*_, stop) in RUNS.items() if stop is not None]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A copy that may be written in; evaluations kept the run's path as it was typed, so that is where we are."""
    monkeypatch.chdir(shutil.copytree(KEPT, tmp_path / "kept"))
    return Path()


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory):
    """The name of a run -> a folder with a copy of it that went on to its end, once, and what that returned."""

    @functools.cache
    def go_on(name):
        folder = tmp_path_factory.mktemp("gone on")
        shutil.copytree(KEPT / name, folder / name)
        return folder, pretrain(None, out=folder / name, resume=True)

    return go_on


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_goes_on_as_it_would_have_then(gone_on, name):
    _, run = gone_on(name)
    stop = RUNS[name][3]
    after = [row for row in run.metrics if row["step"] > stop]
    assert [(row["kind"], row["step"]) for row in after] == [(row["kind"], row["step"]) for row in EXPECTED[name]]
    for row, then in zip(after, EXPECTED[name], strict=True):
        close = 1e-4 if row["step"] <= stop + 5 else 1e-2  # training enlarges the rounding of other machines
        for key in ("loss", "ssl", "sup", "s_w/s_t"):
            if then.get(key) is not None:
                assert row[key] == pytest.approx(then[key], rel=close, abs=close / 10), (row["step"], key)
        if "lr" in then:
            assert row["lr"] == pytest.approx(then["lr"], rel=1e-6)
    assert run.encoder.width == 8


def test_a_finished_run_is_finished(kept):
    before = (kept / "finished" / "encoder.safetensors").read_bytes()
    run = pretrain(None, out=kept / "finished", resume=True)
    assert run.metrics == RunFolder(KEPT / "finished").metrics()
    assert (kept / "finished" / "encoder.safetensors").read_bytes() == before


@pytest.mark.parametrize("protocol", ["knn", "variance", "transfer", "fewshot"])
def test_a_finished_run_is_judged_as_then(kept, protocol):
    more = {
        "knn": ["--k", "20"],
        "transfer": ["--data", "digits"],
        "fewshot": ["--data", "digits", "--shots", "1,5", "--episodes", "20"],
    }
    then = {file.name: json.loads(file.read_text()) for file in Path("finished/evaluate").glob(f"{protocol}*.json")}
    assert then
    for name in then:
        (kept / "finished" / "evaluate" / name).unlink()
    assert main(["evaluate", protocol, "finished", *more.get(protocol, ()), "--quiet"]) == 0
    for name, was in then.items():
        now = json.loads((kept / "finished" / "evaluate" / name).read_text())
        assert now["weights"] == was["weights"]
        for key in ("accuracy", "within", "ratio", "weight"):
            if key in was:
                assert now[key] == pytest.approx(was[key], rel=1e-4), (name, key)


def test_a_linear_probe_of_it_chooses_its_ridge_on_images_that_it_never_saw(kept):
    """0.1.0 stopped its solver early and chose the ridge on trained images: 42.89% then."""
    assert json.loads(Path("finished/evaluate/linear.json").read_text())["accuracy"] == pytest.approx(42.89, abs=0.01)
    assert main(["evaluate", "linear", "finished", "--quiet"]) == 0
    now = json.loads(Path("finished/evaluate/linear.json").read_text())
    assert now["chosen_on"] == "other half"
    assert now["accuracy"] == pytest.approx(LINEAR_NOW, abs=1)


@pytest.mark.parametrize("name", [*STOPPED, "finished", "study/M-1-seed-0"])
def test_every_run_is_judged_and_embedded_once_it_has_ended(gone_on, name, monkeypatch):
    monkeypatch.chdir(gone_on(name)[0])
    for protocol in ("knn", "linear", "variance"):
        assert main(["evaluate", protocol, name, "--quiet"]) == 0
    assert main(["evaluate", "variance", name, "--split", "train", "--layer", "projector", "--quiet"]) == 0
    assert main(["embed", name, "--data", "digits", "--out", "features.npz", "--quiet"]) == 0
    with np.load("features.npz") as written:
        values = next(written[part] for part in written.files if written[part].ndim == 2)
    assert values.shape[1] == load_encoder(Path(name)).width
    assert np.isfinite(values).all()


def test_a_study_goes_on_without_training_and_is_measured_again(kept, capsys):
    before = {file: file.read_bytes() for file in Path("study").glob("*/checkpoints/*.pt")}
    assert main([*study_words(), "--out", "study"]) == 0
    assert "4 of 4 runs are already finished" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in Path("study").glob("*/checkpoints/*.pt")} == before
    found = [json.loads(file.read_text()) for file in Path("study").glob("*/evaluate/linear.json")]
    assert [result["chosen_on"] for result in found] == ["other half"] * 4


def test_the_results_of_a_study_stand_in_a_table(kept):
    assert main(["paper", "table", "1", "study", "--json", "table.json", "--quiet"]) == 0
    then = [json.loads(file.read_text())["accuracy"] for file in Path("study").glob("M-all-*/evaluate/knn.json")]
    lines = json.loads(Path("table.json").read_text())["lines"]
    shown = [line["ours"]["knn"]["mean"] for line in lines if "knn" in line["ours"]]
    assert len(then) == len(shown) == 2
    assert pytest.approx(sum(then) / 2) in shown


def test_a_detector_is_tested_and_goes_on(kept, tmp_path):
    root = tmp_path / "drawn"
    write_voc(root, {"train": range(4), "val": range(4, 6)})
    for name in ("detector", "detector-stopped"):
        settings = json.loads(Path(name, "detect.json").read_text())
        settings["data"]["root"] = str(root)
        Path(name, "detect.json").write_text(json.dumps(settings))
    then = json.loads(Path("detector/evaluate/detect.json").read_text())
    with mock.patch("torchvision.models.resnet18", narrow_resnet):
        assert main(["detect", "eval", "detector", "--device", "cpu", "--json", "scores.json"]) == 0
        assert main(["detect", "train", "--resume", "--out", "detector", "--quiet"]) == 0
        with mock.patch("supancl.cli.detect.draw_detection_curves"):  # as those of the other one
            assert main(["detect", "train", "--resume", "--out", "detector-stopped", "--quiet"]) == 0
        assert main(["paper", "table", "4", "finished", "detector", "--quiet"]) == 0
    rows = [json.loads(line) for line in Path("detector-stopped/metrics.jsonl").read_text().splitlines()]
    after = [(row["step"], row["loss"]) for row in rows if row["step"] > 2 and "loss" in row]
    assert after == [
        (row["step"], pytest.approx(row["loss"], rel=1e-3)) for row in EXPECTED["detector-stopped"] if "loss" in row
    ]
    assert after
    assert json.loads(Path("scores.json").read_text())["AP"] == pytest.approx(then["AP"], rel=1e-3)
