"""`supancl predict` as it is typed: the table, what its columns mean, what is kept, what is refused."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from supancl.runs.encoder_file import load_classifier, load_with_classes, save_encoder, save_with_classes
from supancl.use import predicting
from supancl.use.predicting import PredictSettings, predict_labels
from tests.evaluation.made import encoder, fine_tuned, run_folder, subject
from tests.helpers import assert_mentions, assert_refused, contents, noise, supancl

CLASSES = ("columns", "halves", "rows")


def texture(label: int, random: np.random.Generator) -> np.ndarray:
    """Stripes or halves: what features of a random encoder tell apart."""
    stripes = 60.0 * (np.arange(8) % 2 * 2 - 1)
    pattern = {0: stripes[None, :], 1: np.repeat([-60.0, 60.0], 4)[None, :], 2: stripes[:, None]}[label]
    return (128 + random.uniform(0.5, 1) * pattern + random.normal(0, 10, (8, 8))).clip(0, 255).astype(np.uint8)


def draw(folder: Path, count: int, seed: int = 0, labelled: bool = True) -> Path:
    """Images of three textures, in class folders or, with the true class in the name, without."""
    random = np.random.default_rng(seed)
    for i in range(count):
        name = CLASSES[i % 3]
        path = folder / name / f"{i}.png" if labelled else folder / f"{name}-{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(texture(i % 3, random)).save(path)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run on 90 labelled images of which a third is held out, and 30 new ones."""
    monkeypatch.chdir(tmp_path)
    draw(Path("photos"), 90)
    draw(Path("new"), 30, seed=1, labelled=False)
    run_folder(Path("run"), source="photos", described=True, data__holdout=0.33)
    return tmp_path


def predict(capsys, *words: object, out: str = "labels.csv") -> list[dict[str, str]]:
    said = supancl(capsys, "predict", *words, "--out", out, "--device", "cpu", "--no-cache")
    assert said.code == 0, said.err
    with open(out, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def refused(capsys, *words: object, out: str = "x.csv") -> str:
    said = supancl(capsys, "predict", *words, "--out", out, "--device", "cpu", "--no-cache")
    assert_refused(said)
    assert not os.path.lexists(out) or out != "x.csv"
    return said.err


def fraction_right(rows: list[dict[str, str]]) -> float:
    return float(np.mean([Path(row["path"]).name.startswith(row["label"]) for row in rows]))


@pytest.mark.parametrize(
    "words", [(), ("--classifier", "knn"), ("--classifier", "means")], ids=["linear", "knn", "means"]
)
def test_new_images_get_the_labels_of_the_run_with_a_confidence(place, capsys, words):
    rows = predict(capsys, "run", "--data", "new", *words)
    assert list(rows[0]) == ["path", "label", "confidence", "unlike", "source", "split"]
    assert len(rows) == 30
    assert fraction_right(rows) > (0.6 if "means" in words else 0.75)
    assert {row["source"] for row in rows} == {"predicted"}
    confidences = [float(row["confidence"]) for row in rows]
    assert all(1 / 3 < value <= 1 for value in confidences)
    assert np.mean(confidences) == pytest.approx(fraction_right(rows), abs=0.2)


def test_images_unlike_the_references_are_named(place, capsys):
    for i in range(2):
        Image.fromarray(np.full((8, 8), 100 * i, np.uint8)).save(f"new/blank{i}.png")
    rows = predict(capsys, "run", "--data", "new")
    unlike = {row["path"] for row in rows if row["unlike"] == "yes"}
    assert {"new/blank0.png", "new/blank1.png"} <= unlike
    assert len(unlike) <= 5
    assert {row["path"] for row in rows[: len(unlike)]} == unlike  # they come first


def test_labels_that_are_no_better_than_chance_come_with_a_warning(place, capsys):
    """Labels at 23% were written where chance was 33%, without a word."""
    random = np.random.default_rng(0)
    for i in range(120):
        path = Path("guess") / CLASSES[random.integers(3)] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    run_folder(Path("blind"), source="guess", described=True, data__holdout=0.33)
    said = supancl(capsys, "predict", "blind", "--data", "new", "--out", "guess.csv", "--device", "cpu", "--no-cache")
    assert said.code == 0, said.err
    assert "not clearly above chance" in said.err
    said = supancl(capsys, "predict", "run", "--data", "new", "--out", "good.csv", "--device", "cpu", "--no-cache")
    assert "not clearly above chance" not in said.err


def test_given_labels_stay_and_missing_ones_are_filled_in_and_the_table_is_a_source(place, capsys):
    Path("mixed/=odd").mkdir(parents=True)  # a class and a file that a spreadsheet would compute
    draw(Path("mixed"), 6, seed=2)
    Image.fromarray(noise(8, 8)).save("mixed/=odd/0.png")
    Image.fromarray(noise(8, 8, seed=1)).save("mixed/=1+1.png")
    draw(Path("mixed/unlabelled"), 6, seed=3, labelled=False)
    rows = predict(capsys, "run", "--data", "mixed", out="mixed/labels.csv")
    by_source = {kind: [row for row in rows if row["source"] == kind] for kind in ("given", "predicted")}
    assert [len(found) for found in by_source.values()] == [7, 7]
    assert all(row["path"].startswith(row["label"] + "/") for row in by_source["given"] if "odd" not in row["path"])
    assert {row["confidence"] + row["unlike"] for row in by_source["given"]} == {""}
    assert not any(text.startswith(("=", "+", "-", "@")) for row in rows for text in row.values())
    assert {row["path"] for row in rows if row["path"].startswith("./")} == {"./=odd/0.png", "./=1+1.png"}
    said = supancl(capsys, "data", "show", "mixed/labels.csv", "--json", "-")
    assert said.code == 0, said.err
    shown = json.loads(said.out)
    assert "=odd" in json.dumps(shown)
    assert "'=odd" not in json.dumps(shown)


def nested(folder: Path, count: int, seed: int = 0) -> Path:
    """Three textures on two levels, their coarse class alone for every fifth image, and some without a label."""
    random = np.random.default_rng(seed)
    paths = ("stripes/upright/columns", "halves", "stripes/rows")
    for i in range(count):
        name = paths[i % 3] if i % 5 else paths[i % 3].split("/")[0]
        path = folder / ("unlabelled" if i % 7 == 3 else name) / f"{CLASSES[i % 3]}-{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(texture(i % 3, random)).save(path)
    return folder


def test_an_image_that_is_labelled_coarsely_keeps_that_label(place, capsys):
    nested(Path("nested"), 90)
    run_folder(Path("levels"), source="nested", described=True, data__hierarchy="paths", data__holdout=0.3)
    rows = predict(capsys, "levels", "--data", "nested", "--json", "summary.json")
    leaves = {"stripes/upright/columns", "halves", "stripes/rows"}
    for row in rows:
        folder = Path(row["path"]).parent.relative_to("nested").as_posix()
        assert row["source"] == ("predicted" if folder == "unlabelled" else "given")
        assert row["label"] in leaves if folder == "unlabelled" else row["label"] == folder
    coarse = sum(row["label"] == "stripes" for row in rows)
    assert coarse > 5
    assert len({row["label"] for row in rows if row["source"] == "predicted"}) == 3
    summary = json.loads(Path("summary.json").read_text())
    low, high = summary["accuracy_interval"]
    assert low <= summary["accuracy"] <= high
    assert (summary["given"], summary["classes"]) == (sum(row["source"] == "given" for row in rows), 3)
    assert {row["label"] for row in predict(capsys, "levels", "--data", "nested", "--all", out="all.csv")} <= leaves
    predict(capsys, "levels", "--data", "nested", "--all", "--json", "all.json", out="again.csv")
    assert json.loads(Path("all.json").read_text())["compared"] == summary["given"] - coarse  # those that have a leaf


def test_the_second_call_needs_no_images_of_the_run(place, capsys):
    first = predict(capsys, "run", "--data", "new", "--classifier", "linear")
    kept = contents(place / "run/predict")
    os.rename("photos", "elsewhere")
    assert predict(capsys, "run", "--data", "new", "--classifier", "linear", out="again.csv") == first
    assert contents(place / "run/predict") == kept
    assert set(kept) == {"references.safetensors"}
    refused_words = refused(capsys, "run", "--data", "new", "--normalize")  # other features: made anew
    assert_mentions(refused_words, "photos")


def test_images_that_changed_since_the_run_are_refused_and_can_be_named(place, capsys):
    photos, words = ["--data", "photos", "--device", "cpu"], ["--classifier", "means", "--all"]
    assert not supancl(capsys, "predict", "run", *photos, *words, "--out", "before.csv").err
    os.rename("photos/rows/2.png", "photos/columns/2.png")
    assert_mentions(refused(capsys, "run", *photos, *words), "run", "changed", "references SOURCE")
    # the way out works; of what is held out now, some was trained on
    said = supancl(capsys, "predict", "run", *photos, *words, "--references", "photos", "--out", "now.csv")
    assert said.code == 0, said.err


def test_a_damaged_file_in_the_run_is_made_again_and_a_link_is_not_written_through(place, capsys):
    first = predict(capsys, "run", "--data", "new", "--classifier", "linear")
    file = Path("run/predict/references.safetensors")
    sound = {key: value.clone() for key, value in load_file(file).items()}
    file.write_bytes(file.read_bytes()[:-8] + b"\0" * 8)
    assert predict(capsys, "run", "--data", "new", "--classifier", "linear", out="again.csv") == first
    again = load_file(file)
    assert all(torch.equal(again[key], value) for key, value in sound.items())
    file.unlink()
    os.rename("run/predict", "outside")
    os.symlink("../outside", "run/predict")
    assert_mentions(refused(capsys, "run", "--data", "new"), "run/predict", "link")
    assert contents(Path("outside")) == {}


def test_kept_features_that_are_none_are_made_again(place, capsys):
    """Files with a valid digest that another program wrote."""
    first = predict(capsys, "run", "--data", "new")
    file = Path("run/predict/references.safetensors")
    sound, classes, about = load_with_classes(file)
    values, held_out, labels = (sound[name] for name in ("references", "held_out", "references_labels"))
    pairs = torch.full((60, 1, 2), 9.0)
    changes = (
        {"references": values[:, 0].clone()},
        {"references": values.double()},
        {"references": values.log() * torch.nan},
        {"held_out": held_out[:, 1:].clone()},
        {"references_labels": labels[1:].clone()},
        {"references_labels": labels + 1},
        {"held_out_labels": torch.full((30,), -1)},
        {"references_labels": labels.double()},
        {"references_pairs": pairs[:, 0].clone()},
        {"references_pairs": pairs, "held_out_pairs": pairs[:30].clone()},
        {"references": values[:0], "references_labels": labels[:0]},
    )
    for number, change in enumerate(changes):
        save_with_classes(file, sound | change, classes, made_from=about["made_from"])
        assert predict(capsys, "run", "--data", "new", out=f"{number}.csv") == first
        again = load_file(file)
        assert set(again) == set(sound)
        assert torch.equal(again["references"], values)
    narrow = {"references": values[:, 1:].clone(), "held_out": held_out[:, 1:].clone()}
    save_with_classes(file, sound | narrow, classes, made_from=about["made_from"])
    assert_mentions(refused(capsys, "run", "--data", "new"), "run", "predict", f"{len(values[0]) - 1} numbers")


def test_a_fine_tuned_classifier_is_loaded_back_with_its_class_names(place, capsys):
    assert_mentions(refused(capsys, "run", "--data", "new", "--classifier", "finetuned"), "evaluate finetune run --out")
    evaluated = subject(Path("run"))
    fine_tuned(evaluated, epochs=10, train_batch=16, lr=(0.3,), out=Path("run/finetuned"))
    assert load_classifier(Path("run/finetuned/classifier.safetensors")).classes == CLASSES
    rows = predict(capsys, "run", "--data", "new", "--classifier", "finetuned")
    assert fraction_right(rows) > 0.6
    assert predict(capsys, "run", "--data", "new", "--classifier", "run/finetuned", out="again.csv") == rows
    assert_mentions(refused(capsys, "run", "--data", "new", "--classifier", "finetuned", "--normalize"), "normalize")
    save_encoder(Path("run/finetuned/encoder.safetensors"), encoder(seed=7), (), "x")
    assert_mentions(refused(capsys, "run", "--data", "new", "--classifier", "finetuned"), "another encoder")


def test_images_are_decoded_as_those_they_are_compared_with(place, monkeypatch):
    """A training image is its own nearest reference, also if the run was trained on larger pixels than its views."""
    random = np.random.default_rng(3)
    for i in range(24):
        path = Path("large") / CLASSES[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (41, 53), dtype=np.uint8)).save(path)
    run_folder(Path("on-large"), source="large", described=True, data__short_side=23, data__holdout=0.25)
    seen = []
    nearest = predicting.nearest_similarity
    monkeypatch.setattr(predicting, "nearest_similarity", lambda *given: seen.append(nearest(*given)) or seen[-1])
    predict_labels(subject(Path("on-large")), "large", PredictSettings(every_image=True))
    assert int((seen[-1] > 1 - 1e-5).sum()) == 18  # all but the held-out ones
