"""`supancl detect` as typed."""

import json

import pytest
from PIL import Image

from supancl.cli import main
from supancl.detection.model import load_detector

from .drawn import narrow_resnet18, write_coco, write_place

SETS = {
    "min_sizes": "[64]", "test_size": "64", "max_size": "128", "anchor_sizes": "[24,40]", "anchor_ratios": "[1.0]",
    "rpn_train": "[100,10]", "rpn_test": "[100,10]", "rpn_batch": "16", "roi_batch": "8", "pool": "4", "workers": "0",
    "precise_bn": "1", "log_every": "1",
}  # fmt: skip
TINY = [word for name, value in SETS.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with narrow_resnet18():
        yield write_place(tmp_path_factory.mktemp("drawn"), 4, 2)


def train(place, out, *more):
    words = ["detect", "train", str(place / "encoder.safetensors"), "--data", str(place), "--year", "2012"]
    return main([*words, "--iters", "2", "--batch-size", "2", "--device", "cpu", *TINY, "--out", str(out), *more])


def test_train_and_test(place, tmp_path):
    out = tmp_path / "run"
    assert train(place, out, "--json", str(tmp_path / "train.json"), "--freeze", "stem,layer1") == 0
    told = json.loads((tmp_path / "train.json").read_text())
    assert list(told["runs"]) == ["seed 0"]
    assert told["spread"]["AP"]["n"] == 1
    assert json.loads((out / "detect.json").read_text())["spec"]["freeze"] == ["stem", "layer1"]
    for name in ("curves.png", "detections.png"):
        with Image.open(out / name) as picture:
            assert min(picture.size) > 100
    assert main(["detect", "eval", str(out), "--device", "cpu", "--json", str(tmp_path / "eval.json")]) == 0
    again = json.loads((tmp_path / "eval.json").read_text())
    assert again["AP"] == told["runs"]["seed 0"]["AP"]
    assert (out / "evaluate" / "detect.png").exists()
    assert train(place, out) == 2
    assert main(["detect", "train", "--resume", "--out", str(out), "--quiet"]) == 0  # it has ended; it is tested again
    assert main(["detect", "train", "--resume", "--out", str(out), "--lr", "0.7"]) == 2
    assert main(["detect", "train", "random:resnet50", "--resume", "--out", str(out)]) == 2


def test_several_seeds_have_a_mean_and_a_spread(place, tmp_path):
    words = ["--seeds", "2", "--seed", "5", "--quiet", "--json", str(tmp_path / "told.json")]
    assert train(place, tmp_path / "runs", *words) == 0
    told = json.loads((tmp_path / "told.json").read_text())
    assert list(told["runs"]) == ["seed 5", "seed 6"]
    assert told["spread"]["AP50"]["n"] == 2
    assert (tmp_path / "runs" / "seed-6" / "detections.png").exists()
    seeds = [json.loads((tmp_path / "runs" / f"seed-{s}" / "detect.json").read_text())["spec"]["seed"] for s in (5, 6)]
    assert seeds == [5, 6]
    assert train(place, tmp_path / "runs", *words, "--resume") == 0


def test_a_test_on_other_images_leaves_the_runs_own_scores_alone(place, tmp_path):
    out = tmp_path / "run"
    assert train(place, out, "--quiet", "--precision", "bf16") == 0
    own = (out / "evaluate" / "detect.json").read_text()
    file = write_coco(tmp_path / "others.json", [7, 8, 9])
    words = ["detect", "eval", str(out), "--device", "cpu", "--quiet"]
    assert main([*words, "--data", str(file), "--json", str(tmp_path / "told.json")]) == 0
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["images"], told["precision"]) == (3, "bf16")  # in what the run was tested in
    assert json.loads((out / "evaluate" / "detect-others.json").read_text())["data"] == str(file)
    assert (out / "evaluate" / "detect-others.png").exists()
    assert (out / "evaluate" / "detect.json").read_text() == own
    assert main([*words, "--data", str(file), "--limit", "2"]) == 0
    assert json.loads((out / "evaluate" / "detect-others-2.json").read_text())["images"] == 2
    assert main(words) == 0
    again, kept = json.loads((out / "evaluate" / "detect.json").read_text()), json.loads(own)
    assert (again["AP"], again["AP50"], again["images"]) == (kept["AP"], kept["AP50"], 2)


def test_coco_files_train_a_pyramid_from_nothing(place, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = [write_coco(tmp_path / name / f"{name}.json", seeds) for name, seeds in (("a", [0, 1]), ("b", [2]))]
    words = ["detect", "train", "random:resnet18", "--data", str(files[0]), "--test", str(files[1]), "--arch", "fpn"]
    sets = [*TINY, "--set", "anchor_sizes=[16,24,40,64,96]"]
    assert main([*words, "--iters", "1", "--batch-size", "2", *sets, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    saved = load_detector(tmp_path / "run")
    assert (saved.classes, saved.encoder.name) == (("disc", "square"), "resnet18")
