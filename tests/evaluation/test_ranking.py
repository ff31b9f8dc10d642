"""Ranks against scipy's, and tables of results: seeds averaged, episodes paired, trained data sets not ranked."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from supancl.evaluation.results import Average, average
from supancl.evaluation.suite import differences, rank_encoders, rankings, shared_ranks, table_warnings
from supancl.reports.tables import score_table
from supancl.stats import episode_half_width

RESULTS = {
    "simsiam": {"pets": average([70.0, 71.0, 72.0]), "a_b": Average(50.0)},
    "supsiam": {"pets": average([75.0, 75.5, 76.0]), "a_b": Average(50.001)},
    "byol|x": {"pets": Average(60.0), "a_b": Average(49.0), "dtd": Average(40.0, interval=0.3)},
}


def test_ranks_are_scipys_average_ranks() -> None:
    table = np.random.default_rng(0).integers(0, 6, (9, 25)).astype(float)
    expected = np.stack([rankdata(-column) for column in table.T], 1)
    assert shared_ranks(table) == pytest.approx(expected)
    found = rank_encoders({f"e{i}": {f"d{j}": Average(v) for j, v in enumerate(row)} for i, row in enumerate(table)})
    assert found.average_ranks == pytest.approx(expected.mean(1))
    assert found.averages == pytest.approx(table.mean(1))


def test_ranks_and_marks_follow_the_printed_digits() -> None:
    found = rank_encoders(RESULTS)
    assert found.ranked == ("pets", "a_b")  # nobody else has dtd
    assert found.average_ranks == (1.75, 1.25, 3.0)
    text = score_table(found, "markdown")
    assert "| simsiam (n = 3) | <u>71.00 ± 2.48</u> | **50.00** |  | 1.75 |" in text
    assert "| byol\\|x | 60.00 | <u>49.00</u> | 40.00 ± 0.30 | 3.00 |" in text
    alone = rank_encoders({"a": {"x": Average(1.0)}, "b": {"y": Average(2.0)}})
    assert all(math.isnan(rank) for rank in alone.average_ranks)
    assert alone.to_json()["rows"][0]["average_rank"] is None


def result(group, accuracy, data="pets", task="transfer", **more):
    about = {"label": "recipe", "encoder": group, "protocol": task.split()[0]}
    return {"task": task, "data": data, "group": group, "accuracy": accuracy, **about, **more}


def test_differences_are_paired_over_episodes_after_seeds_are_averaged():
    random = np.random.default_rng(0)
    episodes = {name: random.uniform(0, 100, 40) for name in ("a0", "a1", "b0")}
    results = [
        result(name[0], float(values.mean()), "omniglot", "fewshot 5w1s", accuracies=values.tolist(), drawn="same")
        for name, values in episodes.items()
    ]
    (gap,) = differences([*results, result("a", 10.0), result("b", 20.0)])
    mean = (episodes["a0"] + episodes["a1"]) / 2
    assert gap["interval"] == pytest.approx(episode_half_width(torch.from_numpy(mean - episodes["b0"])))
    assert gap["difference"] == pytest.approx((mean - episodes["b0"]).mean())
    assert (gap["runs"], gap["data"]) == ([2, 1], "omniglot")
    results[2]["drawn"] = "other"  # other episodes are not comparable
    assert differences(results) == []


def test_a_column_that_somebody_was_trained_on_is_shown_and_ranks_nobody():
    task, few = "fewshot 5w1s", {"drawn": "same", "accuracies": [50.0, 70.0]}
    results = [
        result("a", 99.0, "fc100", task, overlaps_training=True, **few),
        result("b", 60.0, "fc100", task, **few),
        result("a", 40.0, "dtd", task, interval=0.5, **few),
        result("a", 42.0, "dtd", task, interval=0.5, **few),
        result("b", 50.0, "dtd", task, interval=0.5, **few),
        result("a", 30.0, "fc100"),
        result("b", 20.0, "fc100"),
    ]
    tables = rankings(results)
    ours, theirs = tables[task].scores.values()
    assert (ours["fc100"].mean, ours["dtd"]) == (99.0, average([40.0, 42.0]))
    assert theirs["dtd"].interval == 0.5  # of one run, over its episodes
    assert (tables[task].ranked, tables[task].average_ranks) == (("dtd",), (2.0, 1.0))
    assert tables[task].averages == (41.0, 50.0)
    assert tables["transfer"].average_ranks == (1.0, 2.0)  # another protocol has other images
    assert "*" not in next(line for line in score_table(tables[task]).splitlines() if "99.00" in line)
    assert [gap["data"] for gap in differences(results)] == ["dtd"]
    assert len(table_warnings(results)) == 1
    assert table_warnings(results[1:]) == []
