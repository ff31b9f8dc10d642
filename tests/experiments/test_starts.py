"""The study of trained starts, from a git repository of photographs to the page, with an untrained start of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.evidence import pages
from experiments.evidence.__main__ import main
from experiments.evidence.numbers import LABELS, ROWS, of_starts, rows_of
from experiments.starts import cells, classical, data
from supancl.core.encoders import EncoderSpec
from supancl.runs.encoder_file import save_encoder
from tests.helpers import picture

ROOT = Path(__file__).parents[2]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of 10 photographs, 6 to train on."""
    for i in range(20):
        picture(tmp_path / f"repository/images/{('cat', 'dog')[i % 2]}/{i}.jpg", seed=i, size=(20, 24), mode="RGB")
    git = ["git", "-C", str(tmp_path / "repository"), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(data, "SIDE", 16)
    data.prepare("dtd", tmp_path / "repository", tmp_path / "data", 2, 6, 4)
    torch.manual_seed(0)
    spec = EncoderSpec("cnn", size=16, width=8)
    save_encoder(tmp_path / "data/start.safetensors", spec.build(), (), "any")
    monkeypatch.setattr(cells, "STARTS", {"start": "data/start.safetensors"})
    for name in ("DATA", "FURTHER_DATA"):
        monkeypatch.setattr(cells, name, ("dtd",))
    monkeypatch.setattr(cells, "SEEDS", (0, 1))
    monkeypatch.setattr(cells, "QUICK", (2, 4, ("views.size=16", "heads.projector.hidden=[8]")))
    return tmp_path


def test_a_table_shows_the_labels_of_a_seed_and_choosing_sees_no_test_image(prepared: Path):
    tables = {path.stem: path.read_text().split() for path in (prepared / "data/dtd").glob("*.csv")}
    assert set(tables) == {f"{labels}-{seed}" for labels in LABELS for seed in (0, 1, 2, "choose")}
    tables = {name: rows for name, rows in tables.items() if name.startswith(("4", "all"))}
    labelled = {
        name: [row for row in rows if row.endswith(",train") and ",," not in row] for name, rows in tables.items()
    }
    assert {name: len(rows) for name, rows in labelled.items()} == {
        "4-0": 8, "4-1": 8, "4-2": 8, "4-choose": 6, "all-0": 12, "all-1": 12, "all-2": 12, "all-choose": 10
    }  # fmt: skip
    assert labelled["4-0"] != labelled["4-1"]
    tested = {row.partition(",")[0] for row in tables["4-0"] if row.endswith(",test")}
    assert len(tested) == 8
    assert not tested & {row.partition(",")[0] for name in ("4-choose", "all-choose") for row in tables[name]}


def test_the_plan_is_the_core_and_then_further_ways():
    names = [cell.name for cell in cells.plan()]
    assert len(names) == len(set(names)) == 312 + 2 * (6 + 4 + 6 + 6)
    assert names[0] == "tf_efficientnet_lite0-plantvillage-4-frozen-0"


def test_every_way_becomes_a_row_and_the_rows_a_page(prepared: Path, monkeypatch: pytest.MonkeyPatch):
    for ways in (cells.WAYS, cells.FURTHER):
        for name, way in ways.items():
            monkeypatch.setitem(ways, name, way._replace(candidates=way.candidates[:2]))
    words = ["run", "starts", "--work", str(prepared), "--results", str(prepared / "none"), "--quick", "--only"]
    assert main([*words, "dtd-4", "dtd-1-finetuned", "dtd-1-frozen"]) == 0
    rows = {path.stem: json.loads(path.read_text()) for path in (prepared / "results" / "starts").glob("*.json")}
    core = {f"start-dtd-4-{way}-{seed}" for way in cells.WAYS for seed in (0, 1)}
    further = {f"start-dtd-4-{way}-0" for way in cells.FURTHER}
    assert set(rows) == core | further | {"start-dtd-1-finetuned-0", "start-dtd-1-frozen-0"}
    first, second, fewer = (rows[f"start-dtd-{name}"] for name in ("4-finetuned-0", "4-finetuned-1", "1-finetuned-0"))
    assert len(first["tried"]) == len(rows["start-dtd-4-supsiam-tuned-0"]["tried"]) == 2
    assert (second["tried"], second["chosen"], fewer["chosen"]) == ({}, first["chosen"], first["chosen"])
    assert any("--init" in line for line in rows["start-dtd-4-supsiam-0"]["commands"])
    assert not any("--init" in line for line in rows["start-dtd-4-scratch-0"]["commands"])
    assert str(prepared) not in json.dumps(rows)
    assert not list((prepared / "runs").glob("*crossentropy*"))
    found = pages.by_name(prepared / "results")
    text = pages.fill((ROOT / "experiments/starts/page.md").read_text(), found)
    assert "| fine-tuned |" in text
    pages.draw(prepared / "figures", {**pages.by_name(), **found})
    assert (prepared / "figures/starts.png").stat().st_size > 10_000


def test_histograms_tell_classes_of_other_colours_and_directions(tmp_path: Path):
    for i in range(16):
        name = ("red", "stripes")[i % 2]
        picture(tmp_path / f"{name}/{i}.jpg", seed=i, size=(40, 40), mode="RGB")
        with Image.open(tmp_path / f"{name}/{i}.jpg") as opened:
            pixels = np.array(opened)
        pixels[..., 1:] //= 2 if name == "red" else 1
        Image.fromarray(pixels).save(tmp_path / f"{name}/{i}.jpg")
    lines = [f"{('red', 'stripes')[i % 2]}/{i}.jpg,{('red', 'stripes')[i % 2]},{'train' if i < 10 else 'test'}"
             for i in range(16)]  # fmt: skip
    (tmp_path / "table.csv").write_text("\n".join(["path,label,split", *lines, "red/0.jpg,,train"]))
    assert classical.accuracy(tmp_path / "table.csv") == (100.0, 6)


def test_the_cases_in_which_another_way_is_better_are_counted():
    results = [{"name": f"a-pets-4-{way}-{seed}", "seed": seed, "status": "finished", "file": "x", "seconds": 1,
                "images_per_second": 1, "values": {"pets a": mean + seed / 2}}
               for way, mean in (("supsiam", 70.0), ("frozen", 60.0), ("finetuned", 80.0))
               for seed in range(3)]  # fmt: skip
    found = {row[1:3]: row for row in of_starts(rows_of(results, ROWS["starts"][0]))}
    assert found["4, all ways", "cases: beaten"][3:7:3] == ("1.00000", "1 cases")
    assert found["4, all ways", "cases: ahead"][3] == "0.00000"
    mean, low, high = map(float, found["4 supsiam - 4 finetuned", "pets a"][3:6])
    assert low < mean == -10.0 < high < 0
