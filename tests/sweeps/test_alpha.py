"""The alpha explorer: one page with table, curves, maps and a sentence that does not claim more than it can."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from supancl.cli.alpha import parse_alphas
from supancl.sweeps.alpha import recommend
from supancl.sweeps.left_out import few_shot_accuracy, left_out_classes

from supancl import recipe
from supancl.cli import main
from supancl.data.opening import open_data
from supancl.probes import Features
from supancl.recipes.auto import is_to_be_fitted
from supancl.reporter import Reporter
from supancl.reports import pictures
from supancl.runs.folder import RunFolder
from supancl.stats import mean_interval, tukey_half_width
from supancl.sweeps import alpha, runner
from supancl.sweeps.runner import Sweep, open_held_out
from supancl.sweeps.runs import FAILURE_FILE
from tests.files import archive, class_folders
from tests.started import Started
from tests.tiny import poisoned, tiny_data

SMALL = ["--epochs", "1", "--set", "data.limit=256", "--set", "encoder.width=16", "--device", "cpu", "--quiet"]
TINY_CNN = ["--set", "encoder.name=cnn", "--set", "encoder.width=8", "--set", "views.size=8", "--batch-size", "8"]
TINY_CNN += ["--set", "heads.projector.hidden=[16]", "--set", "heads.projector.out=16", "--epochs", "1"]


def test_of_equal_alphas_few_studies_call_any_worse() -> None:
    """An interval for each pair by itself would call some alpha worse in a quarter of them."""
    random, alphas = np.random.default_rng(0), [0.0, 0.2, 0.5, 0.8, 1.0]
    wrong = 0
    for _ in range(200):
        drawn = 80 + random.normal(size=(5, 3)) + random.normal(size=(1, 3))
        found = [
            {"alpha": alpha, "seed": seed, "linear": float(drawn[i, seed]), "collapsed": False, "failed": None}
            for i, alpha in enumerate(alphas)
            for seed in range(3)
        ]
        wrong += "is worse" in recommend(found, alphas, "linear")
    assert 1 <= wrong <= 22  # 10 expected; 50 by the pair


def test_the_common_interval_of_two_rows_is_students_paired_one() -> None:
    a, b = [1.0, 2.0, 4.0], [2.0, 2.5, 7.0]
    mean, _, high = mean_interval([y - x for x, y in zip(a, b, strict=True)])
    assert tukey_half_width([a, b]) == pytest.approx(high - mean, rel=1e-6)
    # of three rows and two seeds: q = 8.331 in Tukey's table at 2 degrees of freedom; squares left over: 7/3
    assert tukey_half_width([[1.0, 2.0], [2.0, 5.0], [3.0, 3.0]]) == pytest.approx(
        8.331 * (7 / 3 / 2 / 2) ** 0.5, rel=1e-3
    )


def test_the_interval_is_students() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high - mean == pytest.approx(4.302653 * 1.0 / 3**0.5, rel=1e-5)
    assert mean - low == pytest.approx(high - mean)


def test_an_auto_recipe_is_fitted_once_so_that_its_runs_can_be_continued(tmp_path: Path) -> None:
    base = recipe("auto.supsiam").with_set({"data.source": str(archive(tmp_path / "x.npz")), "encoder.channels": 1})
    fitted, _ = open_held_out(base, "a test", Reporter())
    assert not is_to_be_fitted(fitted)
    assert fitted.train.batch_size == 16


def test_alphas_are_sorted_and_unique() -> None:
    assert parse_alphas("1,.5,0,0.5") == [0.0, 0.5, 1.0]
    assert parse_alphas("0.12345678,0.12345681") == [0.123457]  # one folder, so one alpha


@pytest.mark.parametrize(
    ("classes", "share", "left"), [(10, 0.3, 3), (10, 0.0, 0), (4, 0.3, 2), (3, 0.5, 0), (10, 0.9, 8)]
)
def test_at_least_two_classes_are_left_out_and_two_stay(classes: int, share: float, left: int) -> None:
    chosen = left_out_classes(tiny_data(60, classes), share)
    assert len(chosen) == left
    assert chosen == sorted(set(chosen))


def test_classes_without_held_out_images_are_not_left_out() -> None:
    """Transfer to them could not be measured, and a single class among the left-out ones is always recognised."""
    data = tiny_data(60, 10)
    for kept in ([1, 4, 6, 8, 9], [2, 5, 6], []):
        held_out = data.held_out.take(torch.isin(data.held_out.labels, torch.tensor(kept)).nonzero()[:, 0])
        chosen = left_out_classes(replace(data, held_out=held_out), 0.3)
        assert len(chosen) == max(0, min(3, len(kept) - 2)) * (len(kept) > 3)
        assert set(chosen) <= {data.classes[i] for i in kept}


def test_few_shots_of_separable_classes_are_enough_and_of_noise_are_not() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    signal = torch.eye(3)[labels] * 5 + torch.randn(90, 3, generator=generator)
    assert few_shot_accuracy(Features(signal[:60], labels[:60]), Features(signal[60:], labels[60:]), 5) > 90
    noise = torch.randn(90, 3, generator=generator)
    assert few_shot_accuracy(Features(noise[:60], labels[:60]), Features(noise[60:], labels[60:]), 5) < 60


@pytest.fixture(autouse=True)
def quick_maps(monkeypatch) -> None:
    """Maps are drawn for the study below; after it, those that nobody looks at need not take a second each."""
    monkeypatch.setattr(pictures, "tsne_map", lambda features, *more: features.values[:, :2].numpy())
    monkeypatch.setattr(alpha, "DRAWS", 2)  # of the 50, which the test above takes


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alpha") / "study"
    command = ["alpha", "digits.supsiam", "--alphas", "0,1", "--seeds", "2", "--jobs", "1", "--out", str(out), *SMALL]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(alpha, "MAX_TSNE_IMAGES", 40)
        patched.setattr(alpha, "DRAWS", 5)
        assert main(command) == 0
    return out


def test_the_study_leaves_a_page_that_needs_nothing_else(study: Path) -> None:
    page = (study / "alpha.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http:" not in page
    assert "https:" not in page
    result = json.loads((study / "alpha.json").read_text())
    assert len(result["rows"]) == 4
    keys = ("ssl", "sup", "ratio", "knn", "linear", "transfer")
    assert all(np.isfinite(row[key]) for row in result["rows"] for key in keys)
    # at alpha = 1 the supervised term is measured though it is not trained on
    assert all(row["sup"] != row["ssl"] for row in result["rows"])


def test_the_study_goes_on_where_it_was_left(study: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in study.glob("*/checkpoints/*.pt")}
    command = ["alpha", "digits.supsiam", "--alphas", "0,.5,1", "--seeds", "2", "--jobs", "1", "--out", str(study)]
    assert main([*command, *SMALL[:-1]]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(study.glob("alpha-0.5-seed-*/encoder.safetensors"))) == 2


def test_a_study_with_other_settings_does_not_mix_with_runs_that_are_there(study: Path) -> None:
    command = ["alpha", "digits.supsiam", "--alphas", "0,1", "--out", str(study), *SMALL, "--batch-size", "32"]
    assert main(command) == 2


def fail_at(monkeypatch, *names: str) -> list[str]:
    """These runs meet a loss that is not a number in their second epoch; gives the names of all that were trained."""
    plain, begun = runner.pretrain, []

    def pretrain(recipe, out, **options):
        begun.append(out.name)
        with pytest.MonkeyPatch.context() as patched:
            if out.name in names:
                poisoned(patched, {5})
            return plain(recipe, out=out, **options)

    monkeypatch.setattr(runner, "pretrain", pretrain)
    return begun


def test_a_run_that_fails_does_not_end_the_study(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "study"
    command = ["alpha", "digits.supsiam", "--alphas", "0,.5,1", "--seeds", "2", "--jobs", "1", "--out", str(out)]
    command += ["--json", str(tmp_path / "told.json"), *SMALL[:-1], "--epochs", "2", "--batch-size", "32"]
    command += ["--set", "data.limit=128"]
    with monkeypatch.context() as patched:
        begun = fail_at(patched, "alpha-0.5-seed-0", "alpha-1-seed-0", "alpha-1-seed-1")
        assert main(command) == 4
        assert len(begun) == 6
    result = json.loads((out / "alpha.json").read_text())
    assert json.loads((tmp_path / "told.json").read_text())["rows"] == result["rows"]
    assert [bool(row["failed"]) for row in result["rows"]] == [False, False, True, False, True, True]
    assert all((row["linear"] is None) == bool(row["failed"]) for row in result["rows"])
    half, none = result["summary"][1:]
    assert (half["failed"], half["n"], half["linear"]) == (1, 2, result["rows"][3]["linear"])
    assert (none["failed"], none["linear"]) == (2, None)
    # the same again lists them and trains nothing; only who asks for it has them go on
    begun = fail_at(monkeypatch)
    assert main(command) == 4
    assert begun == []
    assert main([*command, "--retry"]) == 0
    assert begun == ["alpha-0.5-seed-0", "alpha-1-seed-0", "alpha-1-seed-1"]
    assert not list(out.glob(f"*/{FAILURE_FILE}"))
    assert not any(row["failed"] for row in json.loads((out / "alpha.json").read_text())["rows"])


def test_a_study_goes_on_without_steps_that_gave_no_numbers_and_keeps_its_finished_runs(tmp_path, monkeypatch) -> None:
    small = {"data.limit": 128, "encoder.width": 16, "train.device": "cpu", "train.epochs": 1, "train.batch_size": 16}
    recipes = {f"seed-{seed}": recipe("digits.supsiam").with_set({**small, "train.seed": seed}) for seed in (0, 1)}
    data, out = open_data(recipes["seed-0"].data, 1), tmp_path / "study"
    begun = fail_at(monkeypatch, "seed-1")
    assert [*Sweep(out, jobs=1).train(recipes, data).failed] == ["seed-1"]
    asked = {name: each.with_set({"train.on_nan": "skip"}) for name, each in recipes.items()}
    assert not Sweep(out, jobs=1, retry=True).train(asked, data).failed
    assert begun == ["seed-0", "seed-1", "seed-1"]
    kept = [RunFolder(out / name).read_recipe()[0].train.on_nan for name in recipes]
    assert kept == ["stop", "skip"]
    assert len(Sweep(out, jobs=1).train(recipes, data).trained) == 2  # as the study was first asked for
    assert len(begun) == 3


def test_a_study_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """Finished runs are only read: on data that changed, they would be judged on images they were trained on."""
    class_folders(tmp_path / "data", ("a", "b", "c"), each=12)
    command = ["alpha", "cifar100.supsiam", "--data", str(tmp_path / "data"), "--alphas", "0", "--seeds", "1"]
    command += [*TINY_CNN, "--device", "cpu", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    before = (tmp_path / "out" / "alpha.json").read_text()
    class_folders(tmp_path / "more", ("a",), each=4)
    for file in (tmp_path / "more" / "a").iterdir():
        file.rename(tmp_path / "data" / "a" / f"more-{file.name}")
    assert main(command) == 2
    assert (tmp_path / "out" / "alpha.json").read_text() == before


def test_a_signal_ends_a_study_of_several_jobs(tmp_path: Path, forks) -> None:
    out = tmp_path / "study"
    small = ["--epochs", "5000", "--set", "data.limit=128", "--set", "encoder.width=16", "--device", "cpu"]
    command = ["alpha", "digits.supsiam", "--alphas", "0,1", "--seeds", "2", "--jobs", "2", *small, "--out", str(out)]
    process = Started(forks, tmp_path / "process", *command, workers=True)
    process.wait_until(lambda: list(out.glob("*/checkpoints/*.pt")))
    process.send_signal(signal.SIGTERM)
    ended, errors = process.end()
    assert ended == 143, errors
    # two had begun; a third, handed to the workers before the signal, would train for as long as it takes
    assert len(list(out.iterdir())) <= 2
