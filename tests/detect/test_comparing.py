"""Runs side by side."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from supancl.cli import main
from supancl.detect.comparing import FinishedRun, compare_runs, open_finished_runs, short_name
from supancl.detect.layouts import DetectData
from supancl.detect.saving import DetectFolder
from supancl.detect.spec import DetectSpec
from supancl.errors import BadInput
from supancl.reports.detections import comparison_markdown, comparison_row, draw_class_bars, draw_comparison_curves
from tests.files import assert_mentions, assert_one_line, mentions

SPEC = DetectSpec(batch_size=10, iters=40)


def written(path, encoder, seed, score, **changes):
    """A run folder as training leaves it, without its weights."""
    folder = DetectFolder(path)
    folder.create()
    spec = replace(SPEC, seed=seed, **changes)
    folder.write_settings({"spec": spec, "data": DetectData("data"), "encoder": encoder})
    rows = [
        {"kind": "train", "step": 20, "loss": 2.0, "images_per_second": 100.0},
        {"kind": "test", "step": 20, "AP": score / 2, "AP50": score, "AP75": 0.0, "peak_memory_gb": 3.0},
        {"kind": "train", "step": 40, "loss": 1.0, "images_per_second": 50.0},
        {"kind": "test", "step": 40, "AP": score, "AP50": 2 * score, "AP75": 1.0, "peak_memory_gb": 4.0},
    ]
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    classes = {"cat": {"AP50": 2 * score}, "dog": {"AP50": None}}
    folder.write_evaluation(
        "detect", {"AP": score, "AP50": 2 * score, "AP75": 1.0, "classes": classes, "images": 4, "boxes": 9}
    )
    return path


@pytest.fixture
def runs(tmp_path):
    for seed, (ours, nothing) in enumerate([(10.0, 4.0), (14.0, 6.0)]):
        written(tmp_path / "ours" / f"seed-{seed}", "/somewhere/crops", seed, ours)
        written(tmp_path / f"nothing-{seed}", "random:resnet18", seed, nothing)
    return tmp_path


def test_mean_spread_and_cost(runs):
    tested = [
        *open_finished_runs(str(runs / "ours")),
        *open_finished_runs(str(runs / "nothing-0")),
        *open_finished_runs(f"none={runs / 'nothing-1'}"),
    ]
    assert [run.name for run in tested] == ["crops", "crops", "random:resnet18", "none"]
    groups = compare_runs(tested)["groups"]
    assert groups["crops"]["spread"]["AP"] == {"mean": 12.0, "std": pytest.approx(8**0.5), "n": 2}
    assert groups["crops"]["classes_AP50"] == {"cat": 24.0, "dog": None}
    assert groups["none"]["spread"]["AP"]["std"] is None
    # 20 steps of 10 images at 100 images a second, then 20 at 50
    assert groups["crops"]["seconds"] == pytest.approx(2 + 4)
    assert groups["crops"]["images_per_second"] == pytest.approx(400 / 6)
    assert groups["crops"]["memory_gb"] == 4.0
    assert comparison_row("crops", groups["crops"]) == [
        "crops",
        "2",
        "12.00 ± 2.83",
        "24.00 ± 5.66",
        "1.00 ± 0.00",
        "6",
        "66.7",
        "4.0",
    ]


def test_on_a_cpu_there_is_no_memory_to_tell(runs):
    run = open_finished_runs(str(runs / "nothing-0"))[0]
    rows = [{name: value for name, value in row.items() if name != "peak_memory_gb"} for row in run.rows]
    assert comparison_row("", compare_runs([replace(run, rows=rows)])["groups"]["random:resnet18"])[-1] == "-"
    assert replace(run, rows=[]).cost() == {"seconds": 0, "images_per_second": None, "memory_gb": None}


def test_unequal_settings_are_told(runs):
    written(runs / "short", "random:resnet18", 7, 1.0, iters=20, workers=1)
    tested = [run for name in ("nothing-0", "short") for run in open_finished_runs(str(runs / name))]
    assert_one_line("\n".join(compare_runs(tested)["remarks"]), "iters", "20", "40")
    other = replace(tested[0], scores={**tested[0].scores, "images": 5})
    assert_one_line(
        "\n".join(compare_runs([other, open_finished_runs(str(runs / "nothing-1"))[0]])["remarks"]),
        "tested",
        "different images",
    )


def test_other_images_and_another_encoder_are_told(runs):
    one, two = (open_finished_runs(str(runs / f"nothing-{i}"))[0] for i in (0, 1))
    for key, told in (("fingerprint", "the runs were trained on different images"),
                      ("test_fingerprint", "the runs were tested on different images")):  # fmt: skip
        pair = [replace(run, settings={key: value}) for run, value in ((one, "x"), (two, "y"))]
        assert compare_runs(pair)["remarks"] == [told]
        assert compare_runs([pair[0], replace(two, settings={key: "x"})])["remarks"] == []
        assert compare_runs([pair[0], replace(two, settings={})])["remarks"] == []  # an earlier run did not write it
    pair = [
        replace(run, settings={"encoder_spec": {"name": name}}) for run, name in ((one, "resnet18"), (two, "resnet50"))
    ]
    assert_one_line("\n".join(compare_runs(pair)["remarks"]), "encoder.name", "resnet18", "resnet50")


def test_a_name_holds_however_its_path_is_written(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert [
        open_finished_runs(f"mine={path}")[0].name for path in ("nothing-0", "nothing-0/", "./nothing-0", "ours/")
    ] == ["mine"] * 4
    (runs / "nothing-0").rename(runs / "a=b")
    assert [open_finished_runs(text)[0].name for text in ("a=b", "mine=a=b")] == ["random:resnet18", "mine"]


def test_what_cannot_be_compared(runs):
    with pytest.raises(BadInput, match=mentions("no detector", "run")):
        open_finished_runs(str(runs))
    one, two = open_finished_runs(str(runs / "nothing-0"))[0], open_finished_runs(str(runs / "nothing-1"))[0]
    with pytest.raises(BadInput, match=mentions("seed", "random:resnet18")):
        compare_runs([one, one])
    with pytest.raises(BadInput, match=mentions("nothing-0", "random:resnet18", "twin")):
        compare_runs([one, replace(one, name="twin")])
    with pytest.raises(BadInput, match=mentions("random:resnet18", "other", "NAME=RUN")):
        compare_runs([one, replace(two, encoder="other")])
    (runs / "nothing-0" / "evaluate" / "detect.json").write_text("{}")
    with pytest.raises(BadInput, match=mentions("scores", "detector")):
        open_finished_runs(str(runs / "nothing-0"))
    (runs / "nothing-0" / "evaluate" / "detect.json").unlink()
    with pytest.raises(BadInput, match="has not been tested"):
        open_finished_runs(str(runs / "nothing-0"))


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        ("random:resnet18", "random:resnet18"),
        ("/a/crops", "crops"),
        ("/a/crops/encoder.safetensors", "crops"),
        ("/a/moco.pth", "moco.pth"),
    ],
)
def test_short_names(encoder, name):
    assert short_name(encoder) == name


def test_as_typed(runs, capsys):
    words = ["detect", "compare", f"nothing={runs / 'nothing-0'}", f"nothing={runs / 'nothing-1'}", str(runs / "ours")]
    assert main([*words, "--out", str(runs / "table"), "--json", str(runs / "told.json")]) == 0
    told = capsys.readouterr().out
    assert "5.00 ± 1.41" in told
    assert list(json.loads((runs / "told.json").read_text())["groups"]) == ["nothing", "crops"]
    page = (runs / "table" / "compare.md").read_text()
    assert "| crops | 2 | 12.00 ± 2.83 | 24.00 ± 5.66 |" in page
    assert "| cat | 10.0 | 24.0 |" in page
    assert "| dog | - | - |" in page
    for name in ("curves.png", "classes.png"):
        with Image.open(runs / "table" / name) as picture:
            assert min(picture.size) > 100
    assert main(["detect", "compare", str(runs / "nowhere"), "--out", str(runs / "table")]) == 2
    assert_mentions(capsys.readouterr().err, "no detector", "run")


def test_remarks_end_the_page(runs):
    result = compare_runs(open_finished_runs(str(runs / "nothing-0")))
    assert comparison_markdown({**result, "remarks": ["they differ"]}).endswith("\nNote: they differ.\n")


def has_second_colour(path: Path) -> bool:
    with Image.open(path) as picture:
        return bool((np.asarray(picture.convert("RGB")) == (0xEE, 0x66, 0x77)).all(2).any())


def test_figures_have_a_colour_for_every_group(runs, tmp_path):
    rows = [open_finished_runs(str(runs / f"nothing-{i}"))[0].rows for i in (0, 1)]
    draw_comparison_curves({"a": rows}, tmp_path / "one.png")
    draw_comparison_curves({"a": rows, "b": rows}, tmp_path / "two.png")
    assert not has_second_colour(tmp_path / "one.png")
    assert has_second_colour(tmp_path / "two.png")
    draw_class_bars({"a": {"cat": 5.0, "dog": None}}, tmp_path / "bars.png")
    draw_class_bars({"a": {"cat": 5.0, "dog": None}, "b": {"dog": 9.0}}, tmp_path / "bars2.png")
    assert not has_second_colour(tmp_path / "bars.png")
    assert has_second_colour(tmp_path / "bars2.png")


def test_a_run_keeps_what_it_was_given(runs):
    run = open_finished_runs(str(runs / "ours" / "seed-1"))[0]
    assert isinstance(run, FinishedRun)
    assert run.spec.seed == 1
    assert run.path == runs / "ours" / "seed-1"
