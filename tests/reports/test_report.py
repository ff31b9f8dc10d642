"""The verdict on a run, and the report of one or several."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from supancl.errors import Collapsed, Interrupted, NonFinite
from supancl.files import hold_lock
from supancl.reports.page import html_page, write_page
from supancl.reports.report import MAX_POINTS, curve_points, make_charts, open_answers, report_page
from supancl.reports.verdict import RunRecord, find_verdict
from supancl.runs.log import record_stop
from tests.evaluation.made import source
from tests.helpers import class_folders
from tests.reports.made import logged_run

NASTY = "<script>document.title = 'broken'</script>"


def verdict(path):
    return find_verdict(RunRecord(path))


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_collapse_is_red_with_the_likely_cause(tmp_path):
    folder = logged_run(tmp_path / "run", collapsed=True)
    found = verdict(folder.path)
    assert (found.state, found.tone) == ("collapsed", "bad")
    assert "Likely cause" in found.detail
    record_stop(logged_run(tmp_path / "stopped", epochs=8), 16, Collapsed("all targets are equal", "try more"))
    assert verdict(tmp_path / "stopped").state == "collapsed"


def test_a_run_that_was_not_evaluated_is_not_called_good(tmp_path):
    found = verdict(logged_run(tmp_path / "run").path)
    assert (found.state, found.tone, found.headline) == ("finished", "unclear", "Not evaluated")
    assert verdict(logged_run(tmp_path / "nan", losses=(0.0, -0.2, -0.4, None)).path).state == "not finite"


def result(accuracy: float, chance: float, gaps: dict[str, float], images: int = 500) -> dict[str, object]:
    """An evaluation with intervals of 4 points on both sides."""
    baselines = [
        {"name": name, "accuracy": accuracy - gap, "difference": gap, "difference_interval": [gap - 4, gap + 4]}
        for name, gap in gaps.items()
    ]
    ends = [accuracy - 4, accuracy + 4]
    return {"accuracy": accuracy, "accuracy_interval": ends, "chance": chance, "tested_images": images,
            "source": "", "baselines": baselines, "verdict": "better than everything"}  # fmt: skip


@pytest.mark.parametrize(
    ("evaluation", "tone"),
    [
        (result(60, 10, {"random weights": 20}), "good"),
        (result(60, 10, {"random weights": 20, "its start": 9}), "good"),
        (result(60, 10, {"random weights": 20, "its start": 2}), "unclear"),
        (result(60, 10, {"random weights": 20, "its start": -1}), "bad"),
        (result(60, 10, {}), "unclear"),  # nothing to compare with
        (result(60, 10, {"random weights": 20}, images=9), "unclear"),
        (result(36, 33, {"random weights": 20}), "unclear"),
        (result(23, 33, {"random weights": 20}), "bad"),  # labels at 23% where chance was 33%
        (result(35, 33, {"random weights": 0}), "bad"),  # a run that learned nothing was headed "Healthy"
        ({"accuracy": "x", "source": "", "baselines": [{}]}, "unclear"),
        ({"accuracy": 50, "source": "other", "chance": 1, "tested_images": 99}, "unclear"),
    ],
)
def test_the_colour_says_how_good_a_run_is(tmp_path, evaluation, tone):
    """By the fields of the evaluation, whatever its sentences say."""
    folder = logged_run(tmp_path / "run")
    folder.write_evaluation("linear", evaluation)
    found = verdict(folder.path)
    assert (found.state, found.tone) == ("finished", tone)
    assert f'class="verdict {tone}"' in report_page({"run": RunRecord(folder.path)})


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "stopped"),
        (Interrupted("stopped", 15), "stopped"),
        (NonFinite("the loss is not a finite number at step 9", "try less"), "not finite"),
    ],
)
def test_a_run_that_stopped_says_why(tmp_path, error, state):
    folder = logged_run(tmp_path / "run", epochs=8)
    if error is not None:
        record_stop(folder, 16, error)
    assert verdict(folder.path).state == state


def test_a_run_that_still_trains(tmp_path):
    folder = logged_run(tmp_path / "run", epochs=8)
    with hold_lock(folder.lock_file, print):
        found = verdict(folder.path)
    assert found.state == "running"
    assert verdict(folder.path).state == "stopped"


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
    record = RunRecord(folder.path)
    found = find_verdict(record)
    assert found.state == "damaged"
    assert "loss" in make_charts({"run": record})
    report_page({"run": record}, {"run": open_answers(record)})


# --- curves -----------------------------------------------------------------------------------------------------------


def test_curves_have_the_values_of_the_log(tmp_path):
    record = RunRecord(logged_run(tmp_path / "run").path)
    specs = make_charts({"run": record})
    assert specs["loss"]["x"] == "epoch"
    assert [curve["name"] for curve in specs["loss"]["curves"]] == ["loss", "self-supervised", "supervised"]
    assert specs["loss"]["curves"][0]["points"] == [[1, 0.0], [2, -0.2], [3, -0.4], [4, -0.5]]
    assert specs["knn"]["curves"][0]["points"] == [[1, 20], [2, 30], [3, 40], [4, 44]]
    assert {"knn", "effective_rank", "std", "s_w/s_t"} <= specs.keys()


def test_long_curves_keep_their_ends_and_their_values():
    rows = [{"kind": "train", "step": x, "epoch": 0, "loss": x * x} for x in range(10_001)]
    points = [[float(row["step"]), float(row["loss"])] for row in rows]
    record = RunRecord(Path("run"))
    record.rows = rows
    thinned = curve_points(record, "loss")
    assert len(thinned) <= MAX_POINTS
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert all(point in points[:: len(points) // MAX_POINTS + 1] for point in thinned[:-1])


# --- pages ------------------------------------------------------------------------------------------------------------


def test_names_from_files_do_no_harm(tmp_path):
    folder = logged_run(tmp_path / "run", source=str(class_folders(tmp_path / "images", ("<i>cat", "dog"))))
    content = json.loads(folder.recipe_file.read_text())
    content["commit"], content["digest"] = NASTY, None
    content["recipe"]["sources"]["loss.alpha"] = NASTY
    folder.recipe_file.write_text(json.dumps(content))
    folder.write_evaluation("knn", {"accuracy": 1.0, "source": NASTY, "verdict": NASTY})
    record = RunRecord(folder.path)
    page = report_page({NASTY: record, "b": record}, {NASTY: NASTY})
    assert NASTY not in page


def test_the_pages_of_a_run_link_to_one_another(tmp_path):
    folder = logged_run(tmp_path / "runs" / "run").path
    pages = {name: folder / name for name in ("report.html", "map.html", "audit/audit.html")}
    write_page(tmp_path / "runs" / "comparison.html", html_page("Comparison", []))
    for page in pages.values():
        page.parent.mkdir(exist_ok=True)
        write_page(page, html_page(page.stem, []))
    write_page(tmp_path / "report.html", html_page("elsewhere", []))
    assert "href" not in (tmp_path / "report.html").read_text()
    for page in pages.values():
        links = re.findall(r'href="(.*?)"', page.read_text())
        assert len(links) == 3
        assert {(page.parent / link).resolve() for link in links} == {
            *pages.values(),
            tmp_path / "runs" / "comparison.html",
        } - {page}
    (folder / "map.html").unlink()
    write_page(pages["report.html"], html_page("report", []))
    assert "map.html" not in pages["audit/audit.html"].read_text()


# --- images -----------------------------------------------------------------------------------------------------------


def test_the_confusion_matrix_counts_held_out_images(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    data = source(tmp_path / "data.npz", train=90, test=30)
    folder = logged_run(tmp_path / "run", source=str(data))
    assert "evaluate RUN" in str(open_answers(RunRecord(folder.path)))
    folder.write_evaluation("linear", {**result(60, 10, {}), "source": str(data)})
    record = RunRecord(folder.path)
    answers = open_answers(record)
    assert not isinstance(answers, str), answers
    truth, predicted, right, wrong = answers
    assert len(truth) == len(predicted) == 30
    assert len(right) == min(8, int((truth == predicted).sum()))
    assert len(wrong) == min(8, int((truth != predicted).sum()))
    page = report_page({"run": record}, {"run": answers})
    counts = {(a, b): int(n) for a, b, n in re.findall(r'title="(\d) as (\d): (\d+)"', page)}
    assert counts == {
        (str(a), str(b)): int(((truth == a) & (predicted == b)).sum()) for a in range(3) for b in range(3)
    }
    assert page.count("data:image/webp") >= len(right) + len(wrong)
