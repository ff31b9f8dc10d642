"""The pages hold the numbers of the committed results; the driver makes results, also after a kill."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.evidence import numbers, pages
from experiments.evidence.__main__ import main
from experiments.evidence.numbers import (
    RESULTS,
    PooledDeviation,
    difference_interval,
    gap,
    mean_of,
    pooled_deviation,
)
from experiments.evidence.repeat import cells, values_of
from supancl.cli import build_parser
from supancl.stats import Interval

ROOT = Path(__file__).resolve().parents[2]

# --- the pages --------------------------------------------------------------------------------------------------------


def test_the_pages_and_figures_are_made_from_the_committed_results(tmp_path: Path) -> None:
    kept = [name for name in pages.PAGES if (ROOT / name).exists()]
    tables = 0
    for name in kept:
        text = (ROOT / name).read_text(encoding="utf-8")
        emptied, count = pages.TABLE.subn(lambda match: match[1] + "| nothing |\n", text)
        tables += count
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(emptied, encoding="utf-8")
    results = shutil.copytree(RESULTS, tmp_path / "experiments" / "results")
    (results / "runs.csv").unlink()
    pages.write_all(tmp_path, results)
    assert tables > 1
    for name in [*kept, "experiments/results/runs.csv"]:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), f"{name}: run `make results`"
    made = {path.name for path in (tmp_path / "docs" / "figures").iterdir()}
    assert made <= {path.name for path in (ROOT / "docs" / "figures").iterdir() if path.stat().st_size > 5_000}


def test_the_intervals_are_those_of_scipy() -> None:
    ours, theirs = [70.0, 70.4, 71.0], [68.0, 68.9, 68.5]
    found, reference = gap(ours, theirs, None), stats.ttest_ind(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high, found.verdict) == pytest.approx((reference.low, reference.high, "helps"))
    low, high = stats.t.interval(0.95, 2, loc=np.mean(ours), scale=stats.sem(ours))
    assert mean_of(ours, None) == pytest.approx([np.mean(ours), low, high])
    lent, reach = gap([70.0], [68.0], PooledDeviation(0.2, 8)), stats.t.ppf(0.975, 8) * 0.2 * 2**0.5
    assert (lent.low, lent.high, lent.borrowed) == (pytest.approx(2 - reach), pytest.approx(2 + reach), True)
    assert gap([70.0], [68.0, 68.4], None).verdict == "no clear difference"  # one seed, and no spread to borrow


# --- the driver -------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path: Path) -> list[str]:
    """A study whose three runs are the same but for their names."""
    settings = "--epochs 1 --seed 0 --set encoder.width=16 --set data.limit=256 --set train.device=cpu"
    (tmp_path / "results" / "cifar10").mkdir(parents=True)
    for name in ("one", "two", "three"):
        commands = [f"supancl pretrain digits.supsiam --data digits {settings} --out runs/{name}"]
        asked = ("knn", "linear", "variance", "fewshot --ways 4 --shots 1 --queries 3 --episodes 5 --data digits")
        commands += [f"supancl evaluate {words.replace(' ', f' runs/{name} ', 1)}" if " " in words
                     else f"supancl evaluate {words} runs/{name}" for words in asked]  # fmt: skip
        content = {"name": name, "stage": "final", "commands": commands, "values": {}}
        (tmp_path / "results" / "cifar10" / f"{name}.json").write_text(json.dumps(content))
    return ["cifar10", "--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]


def test_a_killed_driver_s_cells_are_made_again_to_the_same_bits(digits: list[str], tmp_path: Path, capfd) -> None:
    command = [sys.executable, "-m", "experiments.evidence", "run", *digits]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline().startswith("one: done in ")
        first.kill()
    assert main(["run", *digits]) == 0
    found = [json.loads(path.read_text()) for path in (tmp_path / "work" / "results" / "cifar10").glob("*.json")]
    assert len(found) == 3
    assert found[0]["values"] == found[1]["values"] == found[2]["values"]
    assert {"knn", "linear", "ratio", "effective_rank", "digits_1"} <= set(found[0]["values"])
    assert found[0]["last"] == found[1]["last"] != {}
    assert str(tmp_path) not in json.dumps(found)
    assert found[0]["commit"] or not (ROOT / ".git").exists()
    assert main(["plan", *digits]) == 0
    assert "3 of 3" in capfd.readouterr().out


def test_drivers_in_the_background_share_the_cells_and_their_results_are_packed(digits: list[str], tmp_path) -> None:
    assert main(["run", *digits, "--only", "one", "two", "--drivers", "2", "--commit", "abc1234"]) == 0
    assert main(["run", *digits, "--wait", "300", "--collect", str(tmp_path / "out")]) == 0
    with tarfile.open(tmp_path / "out" / "results.tar.gz") as packed:
        assert sorted(packed.getnames()) == ["cifar10/one.json", "cifar10/two.json"]
        assert json.load(packed.extractfile("cifar10/one.json"))["commit"] == "abc1234"
    with tarfile.open(tmp_path / "out" / "logs.tar.gz") as packed:
        assert sum(name.startswith("logs/driver") for name in packed.getnames()) == 2


def test_the_commands_of_the_results_are_still_commands_and_fill_the_columns_they_filled() -> None:
    found = [cell for study in numbers.ROWS for cell in cells(study, RESULTS)]
    assert len(found) > 100
    for cell in found:
        for words in cell.commands:
            build_parser().parse_args(words)
        columns = {key.removesuffix("_interval") for key in cell.result["values"] if not re.match("knn_", key)}
        columns -= set(numbers.LOSSES)
        filled = {key for words in cell.commands[1:] for key in values_of(words, answer_of(words))}
        assert columns <= filled | {"AP", "AP50", "AP75"}, cell.name


def answer_of(words: list[str]) -> dict:
    """What an evaluation answers, as far as it becomes columns."""
    flags = dict(pairwise(words))
    sets, shots = (flags.get(flag, "x").split(",") for flag in ("--sets", "--shots"))
    results = [{"data": data, "shots": shot, "accuracy": 1.0} for data in sets for shot in shots]
    return dict.fromkeys(("accuracy", "within", "total", "ratio", "effective_rank"), 1.0) | {"results": results}


OURS, THEIRS = [70.1, 70.9, 70.2, 71.4], [68.0, 69.1, 68.5]


def test_the_interval_of_a_difference_is_scipys() -> None:
    expected = stats.ttest_ind(OURS, THEIRS).confidence_interval(0.95)
    found = difference_interval(OURS, THEIRS)
    assert found[1:] == pytest.approx((expected.low, expected.high))
    assert found.mean == statistics.fmean(OURS) - statistics.fmean(THEIRS)
    bonferroni = stats.ttest_ind(OURS, THEIRS).confidence_interval(1 - 0.05 / 4)
    assert difference_interval(OURS, THEIRS, picked_of=4)[1:] == pytest.approx((bonferroni.low, bonferroni.high))


def test_a_difference_of_single_values_needs_the_spread_of_others() -> None:
    assert difference_interval([70.0], [68.0]) == Interval(2.0, -math.inf, math.inf)
    half = stats.t.ppf(0.975, 8) * 0.2 * 2**0.5
    assert difference_interval([70.0], [68.0], PooledDeviation(0.2, 8)) == pytest.approx((2, 2 - half, 2 + half))
    assert pooled_deviation([[1.0], [2.0]]) is None
