"""Every script below experiments/ runs in miniature, and every page holds the numbers of the committed results."""

from __future__ import annotations

import csv
import doctest
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from experiments.audit import page as audit_page
from experiments.audit import runs as audit_runs
from experiments.audit.ranking import roc_area
from experiments.auto import page as auto_page
from experiments.auto import runs as auto_runs
from experiments.evidence import findings, remote, results, studies, tables
from experiments.evidence.__main__ import RESULTS, main
from experiments.evidence.drive import Driver
from experiments.evidence.further_plans import PLANS
from experiments.evidence.plan import Setting, recipe_of, settings_of, words_of
from experiments.evidence.results import Gap, choose, gap, mean_text, read_results
from experiments.labels import page as labels_page
from experiments.labels import runs as labels_runs
from supancl.cli import build_parser
from supancl.cli.layer import call
from supancl.data.label_noise import flip_labels
from supancl.probes.features import Features
from supancl.probes.precision import average_precision
from supancl.runs.folder import RunFolder
from supancl.stats import PooledDeviation, welch_interval
from supancl.training import start
from supancl.training.trainer import Trainer
from tests.files import archive, noise
from tests.tiny import tiny_data, tiny_recipe

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "experiments" / "benchmarks"
PLAN = PLANS["digits"]()
NARROW = {"encoder.name": "cnn", "encoder.width": 8, "train.batch_size": 16, "train.device": "cpu"}
NARROW_HEADS = {"heads.projector.hidden": [16], "heads.projector.out": 16}

# --- the pages --------------------------------------------------------------------------------------------------------


def test_the_evidence_page_is_written_from_the_committed_results(tmp_path: Path) -> None:
    results = shutil.copytree(RESULTS, tmp_path / "results")
    for name in ("README.md", "docs/choosing.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / Path(name).name).write_text(re.sub(r"\d", "0", text), encoding="utf-8")  # no number is left
    words = ["--results", results, "--out", tmp_path / "RESULTS.md", "--figures", tmp_path / "figures"]
    words += ["--readme", tmp_path / "README.md", "--choosing", tmp_path / "choosing.md"]
    assert main(["page", *map(str, words)]) == 0
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "RESULTS.md").read_text(), "run `make results`"
    assert (results / "runs.csv").read_text() == (RESULTS / "runs.csv").read_text(), "run `make results`"
    for name, mark in (("README.md", "results"), ("docs/choosing.md", "choosing")):
        made, kept = (
            re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end {mark} -->", path.read_text(), re.S)
            for path in (tmp_path / Path(name).name, ROOT / name)
        )
        assert made == kept != [], "run `make results`"
    shown = re.findall(r"docs/figures/([\w-]+\.png)", (ROOT / "RESULTS.md").read_text())
    made = {path.name for path in (tmp_path / "figures").iterdir()}
    assert made <= {path.name for path in (ROOT / "docs" / "figures").iterdir() if path.stat().st_size > 5_000}
    assert set(shown) - made == set()
    rows = {(row["plan"], row["run"]): row for row in csv.DictReader(io.StringIO((RESULTS / "runs.csv").read_text()))}
    one = json.loads((RESULTS / "imagenet" / "final-simclr-0.json").read_text())
    assert float(rows["imagenet", "final-simclr-0"]["pets"]) == one["values"]["pets"]


def test_the_intervals_of_the_page_are_those_of_scipy() -> None:
    ours, theirs = [70.0, 70.4, 71.0], [68.0, 68.9, 68.5]
    found, reference = gap(ours, theirs), stats.ttest_ind(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high, found.verdict) == pytest.approx((reference.low, reference.high, "helps"))
    reference = stats.ttest_ind(ours, theirs[:2], equal_var=False).confidence_interval(0.95)
    found = welch_interval(ours, theirs[:2])
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    low, high = stats.t.interval(0.95, 2, loc=np.mean(ours), scale=stats.sem(ours))
    assert mean_text(ours) == f"{np.mean(ours):.2f} ± {(high - low) / 2:.2f}"
    lent, reach = gap([70.0], [68.0], PooledDeviation(0.2, 8)), stats.t.ppf(0.975, 8) * 0.2 * 2**0.5
    assert (lent.low, lent.high, lent.borrowed) == (pytest.approx(2 - reach), pytest.approx(2 + reach), True)
    assert gap([70.0], [68.0, 68.4]) == Gap(pytest.approx(1.8))  # one seed and no spread to borrow: no interval


@pytest.mark.parametrize("module", [findings, results, studies, tables], ids=lambda module: module.__name__)
def test_the_examples_of_the_page_s_modules_hold(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > outcome.failed == 0


def test_the_other_pages_hold_the_tables_of_the_committed_results(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    report, scaling = __import__("step_report"), __import__("scaling_tables")
    docs = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    found = audit_page.read_results()
    assert audit_page.found_table(found) in docs["audit"]
    assert audit_page.accuracy_table(found) in (ROOT / "RESULTS.md").read_text()
    assert auto_page.table(auto_page.read_results()) in docs["own-data"]
    assert auto_page.starts_table(auto_page.read_all()) in docs["own-data"]
    assert auto_page.few_table() in docs["own-data"]
    for name, section in labels_page.sections().items():
        assert f"<!-- {name} -->\n{section}<!-- end {name} -->" in docs["labels"], name
    for path in (BENCHMARKS / "results").glob("step-*.json"):
        rows = report.read(path)
        assert f"<!-- {path.stem} -->\n{report.markdown(rows)}<!-- end" in docs["performance"], path.name
        if path.stem == "step-h200":
            assert f"<!-- step-h200 -->\n{report.short(rows)}<!-- end" in (ROOT / "README.md").read_text()
    page = tmp_path / "scaling.md"
    for path in (BENCHMARKS / "results").glob("scaling-*.json"):
        page.write_text(docs["scaling"], encoding="utf-8")
        scaling.put_into(page, json.loads(path.read_text()))
        assert page.read_text(encoding="utf-8") == docs["scaling"], path.name


# --- plans, driver, judge, remote machine -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_the_commands_of_a_plan_make_the_recipes_that_are_meant(name: str, monkeypatch) -> None:
    plan, begun = PLANS[name](), []
    monkeypatch.setattr(start, "check_source", lambda source: None)
    monkeypatch.setattr(start, "train", lambda recipe, *others, **more: begun.append(recipe))
    monkeypatch.setattr(start, "finished", lambda run: run)
    assert len({step.name for step in plan.steps}) == len(plan.steps)
    for step in plan.steps:
        settings = settings_of(step, plan, Setting(0.123, 3e-5))
        args = build_parser().parse_args(shlex.split(shlex.join(words_of(step, plan, settings))))
        assert str(args.out) == f"runs/{step.name}"
        if step.needs is None:
            meant = recipe_of(plan.family, f"{step.method}{plan.suffix}", step.epochs, settings)
            meant = meant.with_set({"train.seed": step.seed, "data.source": plan.data})
            call(args)
            assert replace(begun[-1], sources={}) == replace(meant, sources={})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, caches: Path) -> Path:
    """The plan of the digits, by a driver that is killed in its first run and by one that takes over."""
    place = tmp_path_factory.mktemp("evidence")
    words = ["run", "--plan", "digits", "--results", str(place / "results"), "--work", str(place / "work")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPANCL_CACHE", str(caches / "evidence"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
        command = [sys.executable, "-m", "experiments.evidence", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout.readline().startswith("pilot-supsiam-0: ")
            first.kill()
        assert not list(place.glob("results/*.json"))
        assert main(words) == 0
    return place


def test_the_driver_makes_one_result_of_every_run(made: Path, capsys) -> None:
    results = read_results(made / "results", PLAN)
    assert sorted(results) == sorted(step.name for step in PLAN.steps)
    for name, result in results.items():
        assert (result["status"], result["not_measured"], result["why"]) == ("finished", {}, None)
        assert {"linear", "knn", "ratio", "effective_rank", "digits_1", "digits_1_interval"} <= set(result["values"])
        assert len(result["commands"]) == 1 + len(PLAN.tasks["final"])
        assert str(made) not in json.dumps(result)
        assert not (made / "work" / "runs" / name / "checkpoints").exists()
    lr, decay, _ = choose(PLAN, results, "supsiam")
    kept = RunFolder(made / "work" / "runs" / "final-supsiam-0").read_recipe()[0].optimizer
    assert (kept.lr, kept.weight_decay) == (lr, decay)
    assert {path.stem for path in made.glob("results/maps/*")} == {"alpha-0-0", "final-supsiam-0", "final-simsiam-0"}
    assert main(["plan", "--plan", "digits", "--results", str(made / "results")]) == 0
    assert "8 of 8" in capsys.readouterr().out


def test_a_lost_result_is_made_again_to_the_same_bits(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "results", tmp_path / "results")
    (tmp_path / "results" / "pilot-simsiam-1.json").unlink()
    driver = Driver(PLAN, tmp_path / "results", tmp_path / "work", tell=lambda text: None)
    assert driver.run() == ["pilot-simsiam-1"]
    again, before = (read_results(folder / "results")["pilot-simsiam-1"] for folder in (tmp_path, made))
    assert again["values"] == before["values"]


def test_judge_reads_evaluations_that_came_back_without_the_encoder(made: Path, tmp_path: Path) -> None:
    name, ignored = "alpha-0-0", shutil.ignore_patterns("*.safetensors")
    run = shutil.copytree(made / "work" / "runs" / name, tmp_path / "runs" / name, ignore=ignored)
    next((run / "evaluate").glob("knn*.json")).unlink()
    flags = ["--plan", "digits", "--work", str(tmp_path), "--results", str(tmp_path / "results")]
    assert main(["judge", name, *flags]) == 0
    whole, again = (read_results(folder / "results")[name]["values"] for folder in (made, tmp_path))
    assert {**again, "knn": whole["knn"]} == whole


def test_a_remote_machine_unpacks_data_runs_a_queue_and_sends_results_back(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(remote, "SETS", {"two": (("two-0", "two-1"), "two")})
    unpack = (
        "import sys\nfrom pathlib import Path\nout = Path(sys.argv[1]) / 'two'\nout.mkdir(parents=True)\n"
        "(out / 'whole').write_text(''.join(p.read_text() for p in sorted(Path(__file__).parent.glob('two-*'))))\n"
    )
    for folder, files in (("gpu1", {"unpack.py": unpack, "two-0": "2"}), ("gpu2", {"two-1": "3"})):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    work, out, queue = tmp_path / "work", tmp_path / "out", tmp_path / "queue.txt"
    queue.write_text(
        "python -c 'raise SystemExit(3)'\nrow digits pilot-supsiam-0\n"
        "python -c 'import sys; open(sys.argv[1], \"x\").write(sys.argv[2])' {results}/after.json {data}\n"
    )
    flags = ["--work", str(work), "--memory", str(tmp_path / "none"), "--commit", "abc1234"]
    assert remote.main([str(tmp_path / "gpu1"), *flags]) == 0
    assert not list((work / "data").iterdir())  # a file of the data set is still missing
    start = ["--start", "1", "--until", "600", "--queue", str(queue)]
    assert remote.main([str(tmp_path / "gpu2"), *flags, *start]) == 0
    assert (work / "data" / "two" / "whole").read_text() == "23"
    assert remote.main(["--work", str(work), "--wait", "300", "--collect", str(out)]) == 0
    with tarfile.open(out / "results.tar.gz") as packed:
        assert packed.extractfile("after.json").read().decode() == str(work / "data")
        found = json.load(packed.extractfile("digits/pilot-supsiam-0.json"))
    assert (found["commit"], found["status"]) == ("abc1234", "finished")


# --- audit, auto, labels ----------------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Four classes of 60 training images, each a shade of grey with noise."""
    labels = np.arange(240) % 4
    images = (60 * labels[:, None, None, None] + noise(240, 32, 32, 3) // 5).astype(np.uint8)
    test = {"test_images": images[:40], "test_labels": labels[:40]}
    archive(tmp_path / "cifar100.npz", train_images=images, train_labels=labels, **test)
    return tmp_path


def narrow(usual):
    fields = NARROW if usual.method == "crossentropy" else {**NARROW, **NARROW_HEADS}
    return usual.with_set(fields)


def test_audit_trains_on_wrong_labels_and_evaluates_on_right_ones(cifar: Path, tmp_path: Path, monkeypatch) -> None:
    assert len(audit_runs.ROWS) == 11
    monkeypatch.setattr(audit_runs, "CLASSES", 4)
    row = audit_runs.Row("crossentropy", 0.25)
    usual = row.recipe(1)
    monkeypatch.setattr(audit_runs.Row, "recipe", lambda self, epochs: narrow(usual))
    found, kept = audit_runs.run(row, cifar, tmp_path / "run", 1)
    assert (found["wrong"], found["images"], int(kept["is_wrong"].sum())) == (60, 240, 60)
    assert set(found["accuracy"]) == {"linear", "linear on wrong labels", "knn"}


def test_rules_of_the_audit_find_wrong_labels_of_separate_clusters(monkeypatch) -> None:
    monkeypatch.setattr(audit_runs, "CLASSES", 5)
    truth = torch.arange(5).repeat(60)
    values = torch.eye(5).repeat(1, 4)[truth] + 0.2 * torch.randn(300, 20, generator=torch.Generator().manual_seed(0))
    labels = flip_labels(truth, 5, 0.2)
    ranks, _ = audit_runs.ranked(Features(values, labels), labels != truth)
    assert min(area for halves in ranks.values() for area, _ in halves) > 0.95
    chance = np.random.default_rng(0)
    is_wrong, score = chance.random(500) < 0.2, chance.permutation(500) / 500.0
    wrong = torch.from_numpy(is_wrong)
    rounded = np.round(score, 2)  # with equal scores
    assert roc_area(torch.from_numpy(rounded), wrong) == pytest.approx(roc_auc_score(is_wrong, rounded), rel=1e-12)
    ours = average_precision(torch.from_numpy(score), wrong)
    assert ours == pytest.approx(average_precision_score(is_wrong, score), rel=1e-12)


def test_auto_trains_for_about_the_seconds_it_is_given(tmp_path: Path, monkeypatch) -> None:
    assert {cell for cell, _, _ in auto_runs.plan()} == set(auto_runs.CELLS)
    archive(tmp_path / "x.npz", train_images=noise(80, 16, 16, 3), train_labels=np.arange(80) % 2)
    settings = {**NARROW, **NARROW_HEADS, "heads.predictor.hidden": [8]}
    monkeypatch.setitem(auto_runs.CANDIDATES, "rules", lambda cell, data: auto_runs.fitted(cell, data, **settings))
    cell = auto_runs.Cell("x.npz", "cifar100", {"data.holdout": 0.5})
    found = auto_runs.run(cell, "rules", 0, tmp_path / "run", tmp_path, seconds=1.0)
    assert found["epochs"] * 2 * found["seconds_per_step"] == pytest.approx(1.0, rel=0.5)
    assert 100 * auto_page.unpack(found).mean() == pytest.approx(found["accuracy"])


def test_auto_keeps_the_statistics_of_the_encoder_where_it_says_so() -> None:
    for context, batches in ((nullcontext(), {2}), (auto_runs.fixed_norm(), {0})):
        with context:
            trainer = Trainer(tiny_recipe(), tiny_data(), torch.device("cpu"))
            trainer.advance()
        layers = trainer.model.branches.encoder.modules()
        counts = {layer.num_batches_tracked.item() for layer in layers if isinstance(layer, torch.nn.BatchNorm2d)}
        assert counts == batches


def test_labels_runs_few_labels_and_a_long_tail(cifar: Path, tmp_path: Path, monkeypatch) -> None:
    original = labels_runs.Row.recipe
    monkeypatch.setattr(labels_runs.Row, "recipe", lambda self, epochs, images: narrow(original(self, epochs, images)))
    few = labels_runs.Row("semi-25%", "semi", 0.25)
    found = labels_runs.run(few, cifar, tmp_path / "few", 1)
    assert (found["images"], found["labels"]) == (216, 56)  # a quarter of each class, rounded up
    assert min(found["accuracy"].values()) > 50  # shades are easy, even after one epoch
    tail = labels_runs.Row("tail", "supsiam", settings=(("data.imbalance", 10), ("data.balanced", True)))
    found = labels_runs.run(tail, cifar, tmp_path / "tail", 1)
    assert found["images"] < 216
    assert found["by_class_size"]["linear"]["tail"]["classes"] >= 1
    alone, data = labels_runs.prepare(labels_runs.Row("b", "crossentropy", 0.25), cifar, 4)
    assert (len(data.train), int((data.train.labels < 0).sum())) == (56, 0)
    assert 0 <= alone.train.epochs * (56 // 16) - 4 * (216 // 16) < 3  # as many steps as on all images


# --- benchmarks -------------------------------------------------------------------------------------------------------

TINY = {
    "data": ["--images", "4", "--rounds", "1", "--memory", "10"],
    "detect": ["--quick", "--device", "cpu", "--arch", "fpn"],
    "evaluate": ["--quick", "--only", "knn", "--threads", "1"],
    "label_steps": ["--device", "cpu", "--tiny", "--rounds", "2", "--seconds", "0"],
    "scaling": ["--device", "cpu", "--parts", "order,schedule", "--most-gib", "0.01"],
    "step": ["--rows", "imagenet", "--tiny", "--device", "cpu", "--rounds", "1", "--seconds", "0.01"],
    "toy_batched": ["--epochs", "1", "--seeds", "1"],
    "views": ["--device", "cpu", "--rounds", "1", "--seconds", "0", "--only", "32", "--cores", "1"],
}


def test_every_benchmark_is_run_here() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()}
    assert scripts - {"before"} == set(TINY)  # test_before.py


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_measures_one_tiny_row(name: str, tmp_path: Path, monkeypatch) -> None:
    kept = [] if name == "toy_batched" else ["--json", str(tmp_path / "kept.json")]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *TINY[name], *kept])
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # as one of them sets it
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    importlib.import_module(name).main()
    assert not kept or json.loads((tmp_path / "kept.json").read_text())
