"""What `supancl recipes` and `supancl import` print, for people and as JSON."""

import json

from supancl.recipes import RECIPES
from tests.files import supancl


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
