"""What `supancl recipes` and `supancl import` print, for people and as JSON."""

import json

from supancl.recipes import RECIPES
from tests.evaluate.made import run_folder
from tests.files import supancl


def test_recipes_are_listed_with_their_encoder_and_pixels_in_100_columns(capsys):
    lines = supancl(capsys, "recipes").out.splitlines()
    assert lines[1].split() == ["name", "in", "the", "paper", "encoder", "px", "epochs", "batch"]
    assert max(map(len, lines)) <= 100
    by_name = {line.split()[0]: line.split() for line in lines[3:]}
    assert list(by_name) == list(RECIPES)
    assert by_name["cifar100.supsiam"][-4:] == ["cifar-resnet18", "32", "1000", "256"]
    assert by_name["imagenet100.byol-256"][-4:] == ["resnet50", "224", "200", "256"]
    assert by_name["toy.supsiam"][-3:] == ["linear", "200", "256"]  # points have no pixels


def test_recipes_in_json_have_rows(capsys):
    found = json.loads(supancl(capsys, "recipes", "--json", "-").out)
    assert found["recipes"].keys() == RECIPES.keys()
    (row,) = (row for row in found["rows"] if row["name"] == "imagenet100.supbyol")
    assert row == {
        "name": "imagenet100.supbyol",
        "method": "supbyol",
        "paper": found["recipes"]["imagenet100.supbyol"],
        "encoder": "resnet50",
        "pixels": 224,
        "epochs": 200,
        "batch": 128,
    }


def test_import_leaves_an_empty_prefix_unsaid(tmp_path, capsys):
    said = supancl(capsys, "import", run_folder(tmp_path / "run"), "--out", tmp_path / "made")
    assert said.out.startswith("format supancl, encoder cnn, width 12, ")
    assert "prefix" not in said.out
