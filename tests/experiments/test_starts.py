"""The study of trained starts, from a git repository of photographs to the page, with an untrained start of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from experiments.starts import cells, data, page
from supancl.core.encoders import EncoderSpec
from supancl.runs.encoder_file import save_encoder
from tests.files import picture


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
    monkeypatch.setattr(cells, "STARTS", {"start": "start.safetensors"})
    monkeypatch.setattr(page, "STARTS", cells.STARTS)
    for module in (cells, page):
        monkeypatch.setattr(module, "DATA", ("dtd",))
    monkeypatch.setattr(cells, "SEEDS", (0, 1))
    return tmp_path


def test_a_table_shows_the_labels_of_a_seed_and_choosing_sees_no_test_image(prepared: Path):
    tables = {path.stem: path.read_text().split() for path in (prepared / "data/dtd").glob("*.csv")}
    assert set(tables) == {f"{labels}-{seed}" for labels in ("4", "all") for seed in (0, 1, 2, "choose")}
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


def test_every_way_becomes_a_row_and_the_rows_a_page(prepared: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        cells, "WAYS", {name: way._replace(candidates=way.candidates[:2]) for name, way in cells.WAYS.items()}
    )
    words = ["--data", prepared / "data", "--out", prepared / "rows", "--runs", prepared / "runs", "--steps", "2"]
    words += ["--batch", "4", "--only", "dtd-4", "--set", "views.size=16", "heads.projector.hidden=[8]"]
    with pytest.raises(SystemExit):
        page.main(prepared / "rows", prepared / "docs/starts.md")
    cells.main(list(map(str, words)))
    rows = {path.stem: json.loads(path.read_text()) for path in (prepared / "rows").glob("*.json")}
    assert set(rows) == {f"start-dtd-4-{way}-{seed}" for way in cells.WAYS for seed in (0, 1)}
    first, second = (rows[f"start-dtd-4-finetuned-{seed}"] for seed in (0, 1))
    assert len(first["tried"]) == 2
    assert (second["tried"], second["chosen"]) == ({}, first["chosen"])
    assert str(prepared) not in json.dumps(rows)
    assert not list((prepared / "runs").glob("*crossentropy*"))
    (prepared / "docs").mkdir()
    page.main(prepared / "rows", prepared / "docs/starts.md")
    text = (prepared / "docs/starts.md").read_text()
    assert "of 1 cases" in text
    assert all(title in text for title in page.NAMES.values())
    assert (prepared / "docs/figures/starts.png").stat().st_size > 10_000


def test_the_answer_says_first_where_another_way_is_better(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page, "STARTS", ("a",))
    accuracies = {"supsiam": 70.0, "frozen": 60.0, "finetuned": 80.0}
    values = {("4", "pets", "a", way): [mean - 0.5, mean, mean + 0.5] for way, mean in accuracies.items()}
    text = page.answer(values)
    assert text.startswith("**In 1 of 1 cases")
    assert "in 0 SupSiam is clearly better than all" in text
    assert "fine-tuned, 4 labels a class: clearly worse pets from a, 4 labels a class -10.0 [" in text
    assert "frozen, linear classifier, 4 labels a class: clearly worse nowhere; clearly better in 1 of 1; +10.0" in text
