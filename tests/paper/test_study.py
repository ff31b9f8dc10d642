"""The ablation studies: rows that differ in one thing alone, trained once, judged alike, refused where senseless."""

import json
import shutil
from pathlib import Path

import pytest

from supancl import recipe
from supancl.cli import main
from supancl.config import flattened
from supancl.paper.layouts import LAYOUTS
from supancl.paper.numbers import PAPER
from supancl.paper.studies import MEASURES, STUDIES, papers_number, study_rows
from tests.helpers import archive, noise, supancl

STUDY = ("paper", "study")
SMALL = ["--epochs", "1", "--set", "data.limit=256", "--set", "encoder.width=16", "--device", "cpu", "--jobs", "1"]
BASES = {
    "pool": "imagenet100.supsiam",
    "positives": "imagenet100.supsiam",
    "batch": "imagenet100.supsiam",
    "memory": "imagenet100.supcon",
    "alpha": "imagenet100.supsiam",
}
VARIED = {
    "pool": {"pool.kind", "pool.size"},
    "positives": {"loss.samples"},
    "batch": {"train.batch_size"},
    "memory": {"train.batch_size", "pool.kind", "loss.against"},
    "alpha": {"loss.alpha"},
}


@pytest.mark.parametrize("name", BASES)
def test_rows_differ_in_what_is_varied_and_are_rows_of_the_papers_table(name: str) -> None:
    base, study = recipe(BASES[name]), STUDIES[name]
    rows = study_rows(name, base)
    kept = flattened(base)
    for row in rows.values():
        changed = {key for key, value in flattened(row).items() if key != "sources" and kept[key] != value}
        assert changed <= VARIED[name]
    assert study.reference in rows
    table = study.table
    found = [LAYOUTS[table].row_of(row) for row in rows.values()]
    expected = [key for key in PAPER[table].rows[""] if base.method in key or name not in ("batch", "memory")]
    assert [key for key in found if key != "none"] == expected  # no pool is a row of ours alone
    averages = [float(average) for row in rows.values() if (average := papers_number(study, row))]
    assert averages == [PAPER[table].rows[""][key][0] for key in expected]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("study") / "pool"
    command = [*STUDY, "pool", "digits.supsiam", "--seeds", "2", "--rows", "queue, none", "--out", str(out)]
    assert main([*command, *SMALL, "--quiet"]) == 0
    return out


def test_each_row_is_a_run_that_was_judged(study: Path) -> None:
    result = json.loads((study / "results.json").read_text())
    assert [(row["row"], row["seed"]) for row in result["rows"]] == [
        ("queue", 0),
        ("queue", 1),
        ("none", 0),
        ("none", 1),
    ]
    for row in result["rows"]:
        folder = study / f"{row['row']}-seed-{row['seed']}" / "evaluate"
        kept = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("knn", "linear", "variance")}
        assert all(content["protocol"] == name and content["data"] == "digits" for name, content in kept.items())
        assert kept["knn"]["accuracy"] == row["knn"]
        assert kept["linear"]["accuracy"] == row["linear"]
        assert kept["variance"]["within"] / kept["variance"]["total"] == pytest.approx(row["ratio"])
        assert 0 < row["ratio"] < 1
        assert 10 < row["linear"] <= 100  # better than chance, after four steps
    linear = [row["linear"] for row in result["rows"][:2]]
    assert result["summary"][0]["linear"] == pytest.approx(sum(linear) / 2)
    assert "70.40" in (study / "results.md").read_text()  # Table 7's average


def test_a_second_call_trains_and_measures_only_what_is_missing(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    shutil.copytree(study, out)
    shutil.rmtree(out / "none-seed-1")
    mine = out / "queue-seed-1" / "evaluate" / "linear.json"
    result = json.loads(mine.read_text())
    mine.unlink()
    untouched = out / "queue-seed-0"
    before = {file: file.stat().st_mtime_ns for file in untouched.rglob("*") if file.is_file()}
    command = [*STUDY, "pool", "digits.supsiam", "--seeds", "2", "--rows", "queue,none", "--out", str(out), *SMALL]
    assert main(command) == 0
    assert before == {file: file.stat().st_mtime_ns for file in untouched.rglob("*") if file.is_file()}
    assert json.loads(mine.read_text())["accuracy"] == result["accuracy"]
    first, second = (json.loads((folder / "results.json").read_text())["rows"] for folder in (study, out))
    assert [[row[key] for key in MEASURES] for row in first] == [[row[key] for key in MEASURES] for row in second]


def test_on_test_measures_the_test_images(tmp_path: Path, capsys) -> None:
    labels = [i % 2 for i in range(20)]
    data = archive(tmp_path / "data.npz", test_images=noise(12, 8, 8), test_labels=labels[:12])
    words = [
        "alpha",
        "digits.supsiam",
        "--data",
        data,
        "--rows",
        "alpha-0.5",
        "--on-test",
        "--batch-size",
        "8",
        "--set",
        "pool.size=16",
    ]
    said = supancl(capsys, *STUDY, *words, "--out", tmp_path / "out", *SMALL)
    assert said.code == 0, said.err
    assert "seeds: 1, test images: 12" in said.out
    assert (tmp_path / "out" / "alpha-0.5-seed-0" / "evaluate" / "linear-test.json").is_file()
