"""The verdict on a run, and the report of one or several."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from supancl.errors import Collapsed, Interrupted, NonFinite
from supancl.files import hold_lock
from supancl.reports.curves import MAX_POINTS, curve_points, make_charts, thin_out
from supancl.reports.report import name_runs, report_page
from supancl.reports.run_record import read_record
from supancl.reports.training_images import MAX_CLASSES, TrainingImages, images_html, open_training_images
from supancl.reports.verdict import _describe_change, find_verdict, rank_bound
from supancl.training.monitor import COLLAPSED_STD
from supancl.weights.run_end import read_stop, record_stop
from tests.files import archive, class_folders, noise
from tests.reports.made import STEPS, log_lines, logged_run

NASTY = "<script>document.title = 'broken'</script>"


def verdict(path):
    return find_verdict(read_record(path))


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_healthy_run(tmp_path):
    found = verdict(logged_run(tmp_path / "run").path)
    assert found.state == "healthy"
    assert found.tone == "good"
    for piece in ("4 epochs", "0.99", "44.0", "20.0%"):
        assert piece in found.sentence


@pytest.mark.parametrize(
    ("findings", "said", "tone"),
    [
        ({"linear": "better than random weights by 4.7 [1.8, 7.5] points"}, "(linear): better", "good"),
        ({"knn-k4": "better than chance", "linear": "no clear difference from random weights"}, "(linear): no", "warn"),
        ({"knn-k4": "worse than random weights by 2.0 [1.0, 3.0] points"}, "(knn-k4): worse", "warn"),
        ({"transfer-pets": "worse than random weights"}, "44.0%", "good"),  # of other data
    ],
)
def test_the_verdict_has_what_an_evaluation_on_the_runs_own_data_found(tmp_path, findings, said, tone):
    record = read_record(logged_run(tmp_path / "run").path)
    own = record.settings["data.source"]
    results = {
        name: {"verdict": finding, "source": "pets" if "pets" in name else own} for name, finding in findings.items()
    }
    found = find_verdict(replace(record, evaluations=results))
    assert (found.state, found.tone) == ("healthy", tone)
    assert said in found.sentence
    assert ("Evaluated" in found.sentence) == ("pets" not in str(results))


def test_both_bounds_are_called_those_of_a_collapse(tmp_path):
    record = read_record(logged_run(tmp_path / "run").path)
    bounds = re.findall(r"\(collapse: below ([\d.]+)\)", find_verdict(record).sentence)
    assert [float(bound) for bound in bounds] == [COLLAPSED_STD, round(rank_bound(record), 1)]


def test_the_words_of_the_charts_are_explained(tmp_path):
    record = read_record(logged_run(tmp_path / "run").path)
    page = report_page({"run": record})
    assert "last check" in page
    assert "last check" not in report_page({"run": replace(record, rows=())})
    for word in ("effective rank", "relative std", "S_W/S_T", "targets"):
        assert f"<li><b>{word}</b>: " in page


def test_an_accuracy_that_fell_is_not_called_a_rise(tmp_path):
    found = verdict(logged_run(tmp_path / "run", knns=(44, 43, 42, 41)).path)
    assert found.state == "healthy"
    assert "rose" not in found.sentence
    assert "41.0%" in found.sentence


def test_a_rise_within_the_interval_is_not_called_a_rise(tmp_path):
    """Four of six images are not more than three of six."""
    checks = [{"knn": 50.0, "knn_interval": [18.8, 81.2]}, {"knn": 66.7, "knn_interval": [30.0, 90.3]}]
    assert "no clear change" in _describe_change(checks, "knn", (50.0, 66.7))
    clear = [{"knn": 50.0, "knn_interval": [48.0, 52.0]}, {"knn": 66.7, "knn_interval": [64.0, 69.0]}]
    assert _describe_change(clear, "knn", (50.0, 66.7)) == "rose"
    assert _describe_change([{"knn_map": 50.0}, {"knn_map": 66.7}], "knn_map", (50.0, 66.7)) == "went"


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"stds": (0.99, 0.05, 0.04, 0.03)}, "collapsed"),
        ({"stds": (0.99, 0.05, 0.99, 0.05)}, "collapsing"),  # three in a row are a collapse, one is a sign
        ({"stds": (0.99, 0.05, 0.04, 0.99)}, "healthy"),
        ({"ranks": (60, 20, 4, 3)}, "collapsed"),
        ({"ranks": (60, 30, 20, 4)}, "collapsing"),
        ({"ranks": (180, 35, 20, 12)}, "collapsing"),
        ({"ranks": (180, 60, 50, 40)}, "healthy"),  # SupSiam on CIFAR-100: docs/monitor.md
        ({"ranks": (180, 60, 50, 40), "knns": (10, 40, 30, 20)}, "collapsing"),
        ({"losses": (0.0, -0.2, -0.4, None)}, "not finite"),
    ],
)
def test_signs_of_collapse(tmp_path, values, state):
    # without labels a rank of 10 is the bound, whatever the classes
    found = verdict(logged_run(tmp_path / "run", loss__alpha=1.0, **values).path)
    assert found.state == state
    assert found.tone == ("good" if state == "healthy" else "bad")


def test_a_collapse_names_its_step_and_the_likely_cause(tmp_path):
    found = verdict(logged_run(tmp_path / "run", stds=(0.99, 0.05, 0.04, 0.03), optimizer__weight_decay=0.1).path)
    assert f"step {4 * STEPS}" in found.sentence
    assert "weight decay 0.1" in found.sentence


def test_few_classes_lower_the_bound_of_the_rank(tmp_path):
    ranks = (20, 9, 8, 8)
    archive(tmp_path / "data.npz", train_images=noise(60, 8, 8), train_labels=np.arange(60) % 6)
    supervised = logged_run(tmp_path / "a", ranks=ranks, source=str(tmp_path / "data.npz"))
    assert verdict(supervised.path).state == "healthy"
    assert verdict(logged_run(tmp_path / "b", ranks=ranks, loss__alpha=1.0).path).state == "collapsed"


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (None, "stopped", "killed"),
        (Interrupted("stopped", 15), "stopped", "SIGTERM"),
        (NonFinite("the loss is not a finite number at step 9", "try less"), "not finite", "at step 9"),
    ],
)
def test_a_run_that_stopped_says_why(tmp_path, error, state, words):
    folder = logged_run(tmp_path / "run", epochs=8)
    if error is not None:
        record_stop(folder, 16, error)
    found = verdict(folder.path)
    assert found.state == state
    assert words in found.sentence
    if state == "stopped":
        assert "epoch 4 of 8" in found.sentence
        assert f"--resume --out {folder.path}" in found.sentence


def test_a_stop_at_a_collapse_is_a_collapse_and_said_once(tmp_path):
    folder = logged_run(tmp_path / "run", stds=(0.99, 0.05, 0.04, 0.03), epochs=8)
    record_stop(folder, 16, Collapsed("the representation has collapsed by step 16"))
    found = verdict(folder.path)
    assert found.state == "collapsed"
    assert found.sentence.count("by step 16") == 1


def test_a_damaged_record_of_the_stop_says_nothing(tmp_path):
    folder = logged_run(tmp_path / "run", epochs=8)
    for text in ("{", "[1]", '{"step": "1", "reason": "x", "exit_code": 3}'):
        folder.stop_file.write_text(text)
        assert read_stop(folder) is None
    record_stop(folder, 16, Interrupted("stopped", 15))
    folder.stop_file.write_text(folder.stop_file.read_text().replace("16", "17"))
    assert read_stop(folder) is None


def test_a_run_that_still_trains(tmp_path):
    folder = logged_run(tmp_path / "run", epochs=8)
    with hold_lock(folder.lock_file, print):
        found = verdict(folder.path)
    assert found.state == "running"
    assert "41 seconds left" in found.sentence  # 16 steps of 256 images at 100 per second
    folder.metrics_file.unlink()
    assert find_verdict(read_record(folder.path, is_running=True)).state == "running"
    assert find_verdict(read_record(folder.path, is_running=False)).state == "stopped"


def test_a_finished_run_without_its_log(tmp_path):
    folder = logged_run(tmp_path / "run")
    folder.metrics_file.unlink()
    record = read_record(folder.path)
    assert find_verdict(record).state == "unknown"
    assert "Nothing is logged" in report_page({"run": record})


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("metrics.jsonl", lambda text: text.replace("{", "", 1)),
        ("recipe.json", lambda text: text[:100]),
        ("recipe.json", lambda text: "[]"),
        ("recipe.json", lambda text: text.replace('"seed": 0', '"seed": 1')),
        ("evaluate/knn.json", lambda text: '{"accuracy": 99'),
    ],
)
def test_whatever_is_damaged_is_named_and_the_rest_is_shown(tmp_path, file, damage):
    folder = logged_run(tmp_path / "run")
    path = folder.path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(damage(path.read_text() if path.exists() else ""))
    record = read_record(folder.path)
    found = find_verdict(record)
    assert found.state == "damaged"
    assert file in found.sentence
    assert "loss" in make_charts({"run": record})
    report_page({"run": record}, {"run": open_training_images(record)})


# --- curves -----------------------------------------------------------------------------------------------------------


def test_curves_have_the_values_of_the_log(tmp_path):
    record = read_record(logged_run(tmp_path / "run").path)
    specs = make_charts({"run": record})
    assert specs["loss"]["x"] == "epoch"
    assert [curve["name"] for curve in specs["loss"]["curves"]] == ["loss", "self-supervised", "supervised"]
    assert specs["loss"]["curves"][0]["points"] == [[1, 0.0], [2, -0.2], [3, -0.4], [4, -0.5]]
    assert specs["knn"]["curves"][0]["points"] == [[1, 20], [2, 30], [3, 40], [4, 44]]
    assert "momentum" not in specs  # there is no momentum branch
    assert {"knn", "effective_rank", "std", "s_w/s_t", "pool_coverage", "lr"} <= specs.keys()


def test_the_terms_of_a_loss_without_labels_are_left_out(tmp_path):
    record = read_record(logged_run(tmp_path / "run", loss__alpha=1.0).path)
    assert [curve["name"] for curve in make_charts({"run": record})["loss"]["curves"]] == ["loss"]


def test_several_runs_share_charts(tmp_path):
    records = {name: read_record(logged_run(tmp_path / name, epochs=n).path) for name, n in (("a", 4), ("b", 8))}
    specs = make_charts(records)
    assert [curve["name"] for curve in specs["ssl"]["curves"]] == ["a", "b"]
    assert len({curve["colour"] for curve in specs["std"]["curves"]}) == 3  # and the bound


def test_a_log_that_ends_in_the_first_epoch_has_curves(tmp_path):
    folder = logged_run(tmp_path / "run", epochs=8)
    folder.metrics_file.write_text(log_lines([1], [1], [1], [1])[0] + "\n")
    record = read_record(folder.path)
    assert record.steps_per_epoch is None  # nothing says how many images there are
    assert make_charts({"run": record})["loss"]["x"] == "step"
    assert curve_points(record, "loss") == [[STEPS, 1]]


def test_long_curves_keep_their_ends_and_their_values():
    points = [[float(x), float(x * x)] for x in range(10_001)]
    thinned = thin_out(points)
    assert len(thinned) <= MAX_POINTS
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert all(point in points[:: len(points) // MAX_POINTS + 1] for point in thinned[:-1])


# --- pages ------------------------------------------------------------------------------------------------------------


def text_of(page: str) -> str:
    return re.sub(r"<[^>]*>", " ", page.partition("<body")[2])


def test_evaluations_are_ranked_where_runs_share_them(tmp_path):
    result = {"accuracy": 60.0, "accuracy_interval": [55.0, 65.0], "tested_on": "x", "source": "digits", "chance": 10.0}
    untrained = {"name": "random weights", "accuracy": 30.0, "accuracy_interval": [25.0, 35.0]}
    records = {}
    for name, accuracy, tested in (("a", 60.0, "x"), ("b", 70.0, "x"), ("c", 99.0, "other images")):
        folder = logged_run(tmp_path / name)
        folder.write_evaluation("knn", {**result, "accuracy": accuracy, "tested_on": tested, "baselines": [untrained]})
        records[name] = read_record(folder.path)
    page = report_page(records)
    ranking = page.partition("<h2>Evaluations</h2>")[2].partition("</table>")[0]
    assert "Avg. rank" in ranking
    assert "<b>70.00</b>" in ranking
    assert "99.00" not in ranking  # of other images
    assert "99.00" in page
    assert "[55.0, 65.0]" in page
    assert "30.00" in text_of(page)


def test_settings_that_differ_are_shown_and_bold(tmp_path):
    records = {n: read_record(logged_run(tmp_path / n, views__blur=b).path) for n, b in (("a", 0.25), ("b", 0.5))}
    page = report_page(records)
    main = page.partition("<h2>Recipe</h2>")[2].partition("<details>")[0]
    assert "<b>0.25</b>" in main
    assert "<b>0.5</b>" in main
    assert "views.solarize" not in main
    assert "views.solarize" in page


def test_names_from_files_do_no_harm(tmp_path):
    folder = logged_run(tmp_path / "run", source=str(class_folders(tmp_path / "images", ("<i>cat", "dog"))))
    content = json.loads(folder.recipe_file.read_text())
    content["commit"], content["digest"] = NASTY, None
    content["recipe"]["sources"]["loss.alpha"] = NASTY
    folder.recipe_file.write_text(json.dumps(content))
    folder.write_evaluation("knn", {"accuracy": 1.0, "source": NASTY, "verdict": NASTY})
    record = read_record(folder.path)
    page = report_page({NASTY: record, "b": record}, {NASTY: open_training_images(record)})
    assert NASTY not in page
    assert "<i>cat" not in page
    assert "&lt;i&gt;cat" in page


def test_two_runs_of_the_same_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "other"]
    assert list(name_runs(paths)) == [str(paths[0]), str(paths[1]), "other"]


# --- training images --------------------------------------------------------------------------------------------------


def test_the_histogram_is_that_of_the_training_images(tmp_path):
    root = class_folders(tmp_path / "images", ("cat", "dog"), each=20)
    for i in range(10, 20):
        (root / "dog" / f"{i}.png").unlink()
    record = read_record(logged_run(tmp_path / "run", source=str(root)).path)
    images = open_training_images(record)
    assert not images.problem
    assert list(images.counts) == [("cat", 18), ("dog", 9)]  # a tenth is held out
    assert [len(tiles) for _, tiles in images.pictures] == [5] * 4
    assert {name for name, _ in images.pictures} == {"cat", "dog"}
    assert "image/webp" in images_html(images)


def test_data_that_have_gone_or_changed_are_said(tmp_path):
    root = class_folders(tmp_path / "images", each=20)
    record = read_record(logged_run(tmp_path / "run", source=str(root)).path)
    (root / "cat" / "3.png").rename(root / "dog" / "103.png")
    images = open_training_images(record)
    assert "changed" in images.problem
    assert images.counts
    shutil.rmtree(root)
    images = open_training_images(record)
    assert str(root) in images.problem
    assert not images.counts
    assert str(root) in text_of(report_page({"run": record}, {"run": images}))


def test_of_many_classes_the_largest_and_the_smallest_are_listed():
    counts = [(f"class {i}", 1000 - i) for i in range(100)]
    text = images_html(TrainingImages(counts))
    assert text.count("<tr>") == MAX_CLASSES + 1
    assert "class 0<" in text
    assert "class 99<" in text
    assert f"{100 - MAX_CLASSES} more, 913 to 988 each" in text
