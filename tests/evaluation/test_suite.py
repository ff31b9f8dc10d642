"""The suite on miniature data sets: resumed, redone where something changed."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from supancl.evaluation import FewShot as Episodes
from supancl.evaluation import protocols, suite
from supancl.evaluation.encoder import EvaluationOptions, SourceCache
from supancl.evaluation.suite import Task, run_suite, suite_tasks
from supancl.runs.encoder_file import save_encoder
from tests.data.benchmark_trees import BUILDERS
from tests.evaluation.made import encoder, run_folder, subject
from tests.helpers import Notes

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    for name in ("pets", "omniglot"):
        BUILDERS[name](root)
    return root


@pytest.fixture
def root(trees, tmp_path):
    """Pets, for transfer and k-NN, and Omniglot, for episodes; neither is whole."""
    return shutil.copytree(trees, tmp_path / "root")


def partial_options() -> EvaluationOptions:
    return EvaluationOptions(CPU, partial=True, sources=SourceCache())


def small(root, **settings) -> tuple[list[Task], Path]:
    given = {"ways": 3, "shots": (1, 2), "queries": 2, "episodes": 12, "k": 3} | settings
    plan = {name: given.pop(name) for name in ("k", "protocols", "sets") if name in given}
    return suite_tasks(root, **plan, episodes=Episodes(**given)), root


def measured(runs, plan, out, options=None):
    options = options or partial_options()
    reporter = Notes()
    found = run_suite([subject(run, options) for run in runs], *plan, out, reporter)
    return found, reporter


@pytest.fixture
def counted(monkeypatch):
    """How often each protocol is run."""
    calls = []
    plain = protocols.record

    def record(evaluated, data, settings, *rest):
        calls.append(settings.name)
        return plain(evaluated, data, settings, *rest)

    monkeypatch.setattr(protocols, "record", record)
    return calls


def test_a_suite_that_was_killed_goes_on_where_it_was(root, tmp_path, monkeypatch, counted):
    runs = [run_folder(tmp_path / f"run{seed}", seed) for seed in (0, 1)]
    plain, done = suite.write_sealed_json, []

    def killed(path, content):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(path)
        plain(path, content)

    monkeypatch.setattr(suite, "write_sealed_json", killed)
    with pytest.raises(KeyboardInterrupt):
        measured(runs, small(root), tmp_path / "out")
    assert len(done) == 3
    monkeypatch.setattr(suite, "write_sealed_json", plain)
    before = {path: path.read_bytes() for path in done}
    counted.clear()
    found, _ = measured(runs, small(root), tmp_path / "out")
    assert len(counted) == 8 - 3
    assert {path: path.read_bytes() for path in done} == before
    assert len(found.results) == 8
    counted.clear()
    again, _ = measured(runs, small(root), tmp_path / "out")
    assert counted == []
    fresh, _ = measured(runs, small(root), tmp_path / "fresh")
    assert [result["accuracy"] for result in again.results] == [result["accuracy"] for result in fresh.results]


def test_what_changed_is_measured_again(root, tmp_path, counted):
    runs = [run_folder(tmp_path / f"run{seed}", seed) for seed in (0, 1)]
    measured(runs, small(root), tmp_path / "out")
    counted.clear()
    save_encoder(runs[0] / "encoder.safetensors", encoder(7), (), "x")
    measured(runs, small(root), tmp_path / "out")
    assert sorted(counted) == [
        "fewshot",
        "fewshot",
        "knn",
        "transfer",
    ]  # one encoder's
    counted.clear()
    measured(runs, small(root, k=2), tmp_path / "out")
    measured(runs, small(root, k=2, episodes=9), tmp_path / "out")
    assert sorted(counted) == ["fewshot"] * 4 + ["knn"] * 2
    counted.clear()
    measured(runs, small(root, k=2, episodes=9), tmp_path / "out", EvaluationOptions(CPU, partial=True, normalize=True))
    assert len(counted) == 8
    counted.clear()
    picture = next((root / "omniglot-py").rglob("*.png"))
    os.utime(picture, (1, 1))
    measured(runs, small(root, k=2, episodes=9), tmp_path / "out", EvaluationOptions(CPU, partial=True, normalize=True))
    assert counted == ["fewshot"] * 4


def test_a_data_set_that_cannot_be_used_leaves_the_others_alone(root, tmp_path):
    run = run_folder(tmp_path / "run")
    found, _ = measured([run], small(root, shots=(1, 3)), tmp_path / "out")  # characters have 3 images
    assert [result["task"] for result in found.results] == ["knn", "transfer", "fewshot 3w1s"]
    (fault,) = found.failures
    assert (fault["encoder"], fault["task"], fault["data"]) == (str(run), "fewshot 3w3s", "omniglot")
    whole, _ = measured([run], small(root), tmp_path / "out2", EvaluationOptions(CPU))
    assert len(whole.failures) == 4  # without --partial
