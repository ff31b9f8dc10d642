"""The paper's tables: runs put where they belong, beside the paper's numbers."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from supancl import Recipe, recipe
from supancl.cli import main
from supancl.paper.layouts import LAYOUTS
from supancl.paper.numbers import PAPER, TRANSFER
from supancl.paper.pivot import fill, write
from supancl.paper.results import read_entries
from supancl.runs.folder import RunFolder

# --- runs -------------------------------------------------------------------------------------------------------------


def make_run(
    folder: Path,
    chosen: Recipe,
    evaluations: dict[str, dict[str, Any]] | None = None,
    metrics: list[dict[str, Any]] | None = None,
) -> Path:
    """A run folder as far as the tables read it."""
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    run.write_recipe(chosen, ("a", "b"), {"fingerprint": "f"})
    for name, content in (evaluations or {}).items():
        run.write_evaluation(name, content)
    if metrics:
        run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in metrics))
    return folder


def laid(name: str, *folders: Path) -> Any:
    return fill(LAYOUTS[name], read_entries([str(folder) for folder in folders]))


def transfer(value: float, *names: str) -> dict[str, dict[str, Any]]:
    return {
        f"transfer-{name}": {"protocol": "transfer", "data": name, "accuracy": value + i}
        for i, name in enumerate(names or TRANSFER)
    }


IMAGENET = "imagenet100.supsiam"
OTHER = ""  # a row of its own, which the paper does not have
ROWS = [
    # table, recipe, fields, the paper's row
    ("1", "digits.supsiam", {"loss.alpha": 0.2}, "alpha-0.2"),
    ("1", "digits.simsiam", {}, "alpha-1"),
    ("1", "digits.supbyol", {}, OTHER),
    ("1", "cifar100.supcon", {}, None),
    ("2", "toy.supsiam", {"loss.alpha": 0.8}, "alpha-0.8"),
    ("2", "digits.supsiam", {}, None),
    ("4", IMAGENET, {}, "supsiam"),
    ("5", IMAGENET, {"loss.alpha": 0.2}, OTHER),
    ("5", IMAGENET, {"train.batch_size": 256}, OTHER),
    ("5", IMAGENET, {"train.epochs": 3, "train.seed": 4}, "supsiam"),
    ("5", f"{IMAGENET}-256", {}, OTHER),
    ("5", "vit.byol", {}, OTHER),
    ("7", IMAGENET, {}, "queue"),
    ("7", IMAGENET, {"pool.size": 512}, "queue"),
    ("7", IMAGENET, {"pool.kind": "class-queues", "pool.size": 20}, "class-queues-20"),
    ("7", IMAGENET, {"pool.kind": "prototypes"}, "prototypes"),
    ("7", IMAGENET, {"pool.kind": "prototypes", "loss.alpha": 0.1}, OTHER),
    ("7", "imagenet100.byol", {}, None),
    ("8", "cifar100.supsiam-nopool", {}, "neither"),
    ("8", "cifar100.supbyol", {}, "pool+ema"),
    ("F.1", IMAGENET, {"loss.alpha": 0.0}, "alpha-0"),
    ("F.2", IMAGENET, {}, "M-all"),
    ("F.2", IMAGENET, {"loss.samples": 16}, "M-16"),
    ("F.2", IMAGENET, {"loss.samples": 16, "pool.kind": "class-queues"}, OTHER),
    ("F.2", "imagenet100.simsiam", {}, None),
    ("F.3", "imagenet100.supcon", {}, "supcon-batch-128"),
    ("F.3", "imagenet100.supcon-pool-256", {}, "supcon-batch-256-memory"),
    ("F.3", IMAGENET, {"train.batch_size": 256}, "supsiam-batch-256"),
    ("F.3", IMAGENET, {"loss.alpha": 0.1}, OTHER),
    ("G.1", "vit.supmoco", {}, "supmoco"),
    ("G.1", "imagenet100.byol", {}, OTHER),
    ("H.1", "cifar10.byol", {}, "byol"),
    ("H.1", "cifar100.moco2", {}, None),
]


@pytest.mark.parametrize(("table", "name", "fields", "row"), ROWS)
def test_a_run_has_its_row(table: str, name: str, fields: dict[str, Any], row: str | None) -> None:
    chosen = recipe(name).with_set(fields)
    papers = {row for kept in PAPER[table].rows.values() for row in kept}
    found = LAYOUTS[table].row_of(chosen)
    assert (OTHER if found == name and found not in papers else found) == row


def test_seeds_are_averaged_and_set_beside_the_paper(tmp_path: Path) -> None:
    for seed, value in enumerate((60.0, 62.0, 64.0)):
        chosen = recipe(IMAGENET).with_set({"train.seed": seed})
        make_run(tmp_path / f"a{seed}", chosen, transfer(value))
    make_run(tmp_path / "b", recipe("imagenet100.simsiam"), transfer(50.0))
    filled = laid("5", *sorted(tmp_path.iterdir()))
    line = next(line for line in filled.lines if line.row == "supsiam")
    score = line.ours["transfer:cifar10"]
    assert (score.mean, score.sd, score.n) == (62.0, 2.0, 3)
    assert line.paper["transfer:cifar10"][0] == 89.95
    assert line.ours["rank"].mean == 1.0
    assert line.rankings["transfer:cifar10"] == 0
    assert all(
        "62.00" in write(filled, form) and "89.95" in write(filled, form) for form in ("text", "markdown", "latex")
    )
    # no run of MoCo-v2: ours is blank, the paper's stands alone
    assert not next(line for line in filled.lines if line.row == "moco2").ours


def test_csv_has_plain_numbers(tmp_path: Path) -> None:
    make_run(tmp_path / "a", recipe(IMAGENET), {"linear": {"probe": "sgd", "accuracy": 51.5}})
    rows = list(csv.DictReader(io.StringIO(write(laid("4", tmp_path / "a"), "csv"))))
    row = next(row for row in rows if row["method"] == "supsiam")
    assert (row["Top-1"], row["VOC AP paper"], row["VOC AP paper interval"]) == ("51.5", "53.89", "0.26")
    assert (row["VOC AP"], row["Top-1 n"], rows[0]["Top-1"]) == ("", "1", "")


def test_losses_and_variance_come_from_the_run_itself(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "train", "step": 1, "epoch": 0, "ssl": -0.1, "sup": -0.2},
        {"kind": "train", "step": 2, "epoch": 1, "ssl": -0.3, "sup": -0.4},
        {"kind": "train", "step": 3, "epoch": 1, "ssl": -0.5, "sup": -0.6},
        {"kind": "monitor", "step": 3, "epoch": 1, "s_w": 0.2, "s_w/s_t": 0.25, "knn": 40.0},
    ]
    ours, theirs = (recipe(f"digits.{name}").with_set({"train.epochs": 2}) for name in ("supsiam", "simsiam"))
    a = make_run(tmp_path / "a", ours, {"variance": {"within": 0.3, "total": 0.5, "ratio": 0.6}}, rows)
    b = make_run(tmp_path / "b", theirs, {}, rows)
    lines = {line.row: line.ours for line in laid("1", a, b).lines if line.ours}
    assert {key: score.mean for key, score in lines["alpha-0.5"].items()} == pytest.approx(
        {"ssl": -0.4, "sup": -0.5, "within": 0.3, "ratio": 60.0, "knn": 40.0}
    )
    # without a pool SimSiam has no supervised target, so it has no l_sup
    assert {key: score.mean for key, score in lines["alpha-1"].items()} == pytest.approx(
        {"ssl": -0.4, "within": 0.2, "ratio": 25.0, "knn": 40.0}
    )


def test_a_run_that_was_not_trained_to_its_end_is_in_no_mean(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "monitor", "step": 4, "epoch": 0, "s_w": 0.2, "s_w/s_t": 0.25, "knn": 10.0},
        {"kind": "train", "step": 8, "epoch": 1, "ssl": -0.3, "sup": -0.4},
        {"kind": "monitor", "step": 8, "epoch": 1, "s_w": 0.2, "s_w/s_t": 0.25, "knn": 40.0},
    ]
    short = recipe("digits.supsiam").with_set({"train.epochs": 2})
    folders = [
        make_run(tmp_path / f"{seed}", short.with_set({"train.seed": seed}), {}, rows[:end])
        for seed, end in enumerate((3, 2, 1))
    ]
    filled = laid("1", *folders)
    line = next(line for line in filled.lines if line.ours)
    assert (line.ours["knn"].mean, line.ours["knn"].n) == (40.0, 1)


def test_evaluations_of_a_suite_join_the_run_they_are_of(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", recipe(IMAGENET), transfer(60.0, "pets"))
    for name, encoder in (("of-run", run / "encoder.safetensors"), ("theirs", "moco.pth")):
        (tmp_path / "suite" / name / "evaluate").mkdir(parents=True)
        (tmp_path / "suite" / name / "evaluate" / "transfer-dogs.json").write_text(
            json.dumps({"protocol": "transfer", "encoder": str(encoder), "data": "dogs", "accuracy": 55.0})
        )
    filled = laid("5", tmp_path / "suite", run)
    lines = {line.row: line.ours for line in filled.lines if line.ours}
    assert lines["supsiam"]["transfer:pets"].mean == 60.0
    assert lines["supsiam"]["transfer:dogs"].mean == 55.0
    assert lines["theirs"]["transfer:dogs"].mean == 55.0
    assert lines["theirs"]["rank"].mean == 1.5


@pytest.mark.parametrize("name", LAYOUTS)
def test_without_runs_every_table_is_the_papers(name: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / "table"
    assert main(["paper", "table", name, "--out", str(out), "--quiet"]) == 0
    text = out.read_text()
    for rows in PAPER[name].rows.values():
        for values in rows.values():
            assert f"{values[-1]:g}" in text or f"{values[-1]:.2f}" in text


# --- what does not belong in a table of the paper ---------------------------------------------------------------------

PETS = {
    "protocol": "transfer",
    "base": "transfer-pets",
    "data": "pets",
    "source": "pets@data",
    "accuracy": 60.0,
    "metric": "mean-per-class",
    "view": "whole",
}


@pytest.mark.parametrize(
    "change",
    [{"metric": "top-1"}, {"layer": "layer3"}, {"partial": True}, {"overlaps_training": True}, {"source": "mine/pets"}],
)
def test_other_measurements_are_passed_over(change: dict[str, Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", recipe(IMAGENET), {"transfer-pets": PETS | change})
    filled = laid("5", run)
    assert not any("transfer:pets" in line.ours for line in filled.lines)
    RunFolder(run).write_evaluation("transfer-pets-other", PETS | change)
    RunFolder(run).write_evaluation("transfer-pets", PETS)
    filled = laid("5", run)
    (line,) = (line for line in filled.lines if line.ours)
    assert line.ours["transfer:pets"].mean == 60.0


def test_only_the_usual_episodes_and_neighbours_fill_a_table(tmp_path: Path) -> None:
    few = {"protocol": "fewshot", "source": "dtd@data", "accuracy": 50.0, "episodes": 2000, "queries": 16, "seed": 0}
    a = make_run(
        tmp_path / "a",
        recipe("imagenet100.byol"),
        {"fewshot-dtd-5w1s": few | {"episodes": 20}, "fewshot-dtd-5w5s": few},
    )
    filled = laid("6", a)
    assert [line.section.key for line in filled.lines if line.ours] == ["5w5s"]
    measured = {
        "knn": {"protocol": "knn", "data": "digits", "accuracy": 90.0, "k": 1, "leave_one_out": True},
        "linear": {"protocol": "linear", "data": "digits", "accuracy": 91.0},
        "variance": {"protocol": "variance", "data": "toy", "within": 0.5, "ratio": 0.5},
    }
    (line,) = (
        line for line in laid("1", make_run(tmp_path / "b", recipe("digits.supsiam"), measured)).lines if line.ours
    )
    assert set(line.ours) == {"linear"}


def test_a_copied_run_counts_once(tmp_path: Path) -> None:
    for name, seed, weights in (("a", 0, "w0"), ("b", 0, "w0"), ("c", 1, "w1"), ("d", 2, "w1"), ("e", 1, "w2")):
        chosen = recipe(IMAGENET).with_set({"train.seed": seed})
        make_run(tmp_path / name, chosen, {"transfer-pets": {"accuracy": 60.0 + seed, "weights": weights}})
    filled = laid("5", *sorted(tmp_path.iterdir()))
    (line,) = (line for line in filled.lines if line.ours)
    assert (line.ours["transfer:pets"].mean, line.ours["transfer:pets"].n) == (60.5, 2)
