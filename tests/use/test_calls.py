"""What people type first in Python: `pretrain`, `load`, `embed`, `recipe`, `open_data`, `encoder.transform`."""

from __future__ import annotations

import builtins
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import supancl
from supancl import BadInput
from supancl.reports import terminal
from supancl.training.start import open_given
from tests.helpers import (
    archive,
    assert_one_line,
    class_folders,
    mentions,
    noise,
    picture,
    saved_result,
    tiny_data,
    tiny_recipe,
)
from tests.helpers import supancl as command

TINY = {"epochs": 1, "batch_size": 4, "encoder.width": 8, "pool.size": 16, "device": "cpu"}
FLAGS = ["--epochs", "1", "--batch-size", "4", "--set", "encoder.width=8", "--set", "pool.size=16", "--device", "cpu"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Photographs of several sizes and kinds, larger than the encoder's input."""
    root = class_folders(tmp_path_factory.mktemp("photos"), each=8)
    picture(root / "cat" / "wide.jpg", 1, (24, 60), "RGB")
    picture(root / "cat" / "tall.png", 2, (70, 41), "RGBA")
    picture(root / "dog" / "grey.png", 3, (33, 33), "L")
    sideways = Image.fromarray(noise(30, 50, 3, seed=4))
    exif = sideways.getexif()
    exif[0x0112] = 6  # held on its side
    sideways.save(root / "dog" / "sideways.jpg", exif=exif)
    Image.fromarray(noise(20, 20, seed=5).astype(np.uint16) * 257).save(root / "dog" / "deep.tif")
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> supancl.Run:
    return supancl.pretrain(tiny_recipe(), tiny_data(), tmp_path_factory.mktemp("runs") / "run", epochs=1)


class Table(dict):
    """As a table of pandas, it has columns, and a loop over it gives their names."""

    columns = property(lambda self: list(self))


def pixels(split) -> torch.Tensor:
    return split.batch(torch.arange(len(split))).pixels


def same_weights(one: supancl.Encoder, other: supancl.Encoder) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


# --- pretrain ---------------------------------------------------------------------------------------------------------


def test_a_name_a_folder_and_settings_train_what_the_command_trains(photos, tmp_path, capsys):
    run = supancl.pretrain("digits.supsiam", photos, tmp_path / "python", **TINY, alpha=0.3)
    flags = [*FLAGS, "--set", "loss.alpha=0.3"]
    said = command(capsys, "pretrain", "digits.supsiam", "--data", photos, "--out", tmp_path / "command", *flags)
    assert said.code == 0, said.err
    other = supancl.load(tmp_path / "command")
    assert same_weights(run.encoder, other.encoder)
    assert replace(run.recipe, sources={}) == replace(other.recipe, sources={})
    assert run.recipe.sources["loss.alpha"] == "given"


@pytest.mark.parametrize("kind", ["colour", "paths", "list"])
def test_images_with_labels_of_any_kind(kind, photos, tmp_path):
    arrays, files = noise(20, 8, 8), sorted(photos.rglob("*.*"))
    images, labels = {
        "colour": (np.repeat(arrays[..., None], 3, -1), np.arange(20) % 2),  # to grey: what the recipe takes
        "paths": (files, [file.parent.name for file in files]),
        "list": ([array[: 6 + i % 2] for i, array in enumerate(arrays)], [0, 1, -1, 1] * 5),
    }[kind]
    run = supancl.pretrain("digits.supsiam", (images, labels), tmp_path / "run", **TINY, **{"data.holdout": 0.2})
    assert run.classes in (("cat", "dog"), ("0", "1"))
    assert run.metrics[-1]["knn_queries"] >= 2


class Pairs(torch.utils.data.Dataset):
    """A data set of torch that does not raise IndexError, as many do not."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index % len(self)], self.labels[index % len(self)]


GREY, NUMBERS = noise(20, 8, 8), np.arange(20) % 2
COLOUR = noise(20, 8, 9, 3)
CHANNELS_FIRST = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("data", "images"),
    [
        ((torch.from_numpy(GREY)[:, None], torch.from_numpy(NUMBERS).float()), GREY),
        ((CHANNELS_FIRST, NUMBERS), COLOUR),
        (Pairs([Image.fromarray(image) for image in GREY], NUMBERS), GREY),
        (torch.utils.data.TensorDataset(CHANNELS_FIRST, torch.from_numpy(NUMBERS)), COLOUR),
        ([(image, int(label)) for image, label in zip(GREY, NUMBERS, strict=True)], GREY),
    ],
)
def test_tensors_and_data_sets_are_read_as_arrays(data, images):
    recipe = supancl.recipe("digits.supsiam")
    opened, expected = open_given(recipe, data), open_given(recipe, (images, NUMBERS))
    assert opened.classes == expected.classes == ("0", "1")
    for split in ("train", "held_out"):
        ours, theirs = getattr(opened, split), getattr(expected, split)
        assert ours.labels.tolist() == theirs.labels.tolist()
        assert torch.equal(pixels(ours), pixels(theirs))


def test_a_stopped_run_is_resumed_by_its_folder_alone(tmp_path):
    data = tiny_data()
    whole = supancl.pretrain(tiny_recipe(), data, tmp_path / "whole")

    class Stop(supancl.Reporter):
        def on_epoch(self, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supancl.pretrain(tiny_recipe(), data, tmp_path / "run", reporter=Stop())
    resumed = supancl.pretrain(data=data, out=tmp_path / "run", resume=True, keep="none")
    assert same_weights(resumed.encoder, whole.encoder)
    assert resumed.recipe.train.keep == "none"
    with pytest.raises(BadInput, match=mentions("loss.alpha", 0.9)):
        supancl.pretrain(data=data, out=tmp_path / "run", resume=True, alpha=0.9)


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_shows_in_a_terminal_a_notebook_and_where_it_is_asked_for(tmp_path, monkeypatch, capsys):
    def printed(**options) -> str:
        terminal._terminal.cache_clear()  # a process is in one place
        supancl.pretrain(
            tiny_recipe(train__epochs=1), tiny_data(), tmp_path / str(len(list(tmp_path.iterdir()))), **options
        )
        return capsys.readouterr().out

    assert printed() == ""  # a file
    assert "epoch" in printed(verbose=True)
    notebook = SimpleNamespace(kernel=object())
    monkeypatch.setattr(builtins, "get_ipython", lambda: notebook, raising=False)
    assert "epoch" in printed()
    assert printed(verbose=False) == ""
    notebook.kernel = None  # IPython in a terminal
    assert printed() == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "epoch" in printed()


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_loaded_run_is_the_one_that_was_trained(run, capsys):
    loaded = supancl.load(run.folder)
    assert same_weights(loaded.encoder, run.encoder)
    assert not loaded.encoder.training
    assert (loaded.metrics, loaded.collapsed) == (run.metrics, run.collapsed)
    assert loaded.recipe == run.recipe
    assert loaded.recipe.name == "tiny.supsiam"
    assert loaded.classes == ("class 0", "class 1", "class 2")


def test_results_of_the_command_are_read(tmp_path, capsys):
    out = tmp_path / "run"
    run = supancl.pretrain("digits.supsiam", out=out, limit=64, **{**TINY, "batch_size": 32, "monitor_every": 0})
    assert run.results == {}
    assert command(capsys, "evaluate", "knn", out, "--no-baselines", "--device", "cpu").code == 0
    (name,) = run.results
    assert run.results[name] == {
        k: v for k, v in saved_result(out / "evaluate" / f"{name}.json").items() if k != "digest"
    }
    assert run.results[name]["accuracy"] > 0
    file = out / "evaluate" / f"{name}.json"
    file.write_text(file.read_text().replace("accuracy", "acuracy"))
    with pytest.raises(BadInput, match=mentions(file)):
        _ = run.results


# --- features ---------------------------------------------------------------------------------------------------------


def test_features_are_those_of_the_command(photos, tmp_path, capsys):
    """From a folder, from paths, from Pillow images, and through `encoder.transform`."""
    run = supancl.pretrain("digits.supsiam", photos, tmp_path / "run", **TINY)
    said = command(capsys, "embed", run.folder, "--data", photos, "--out", tmp_path / "features.npz", "--device", "cpu")
    assert said.code == 0, said.err
    content = np.load(tmp_path / "features.npz")
    expected, names = content["train_features"], [Path(name) for name in content["train_names"]]
    folder = supancl.embed(run, photos)
    assert np.array_equal(folder.values.numpy(), expected)
    assert folder.labels.tolist() == content["train_labels"].tolist()
    opened = [Image.open(name) for name in names]
    for images in (names, list(map(str, names)), opened):
        features = supancl.embed(run.folder, images)
        assert np.array_equal(features.values.numpy(), expected)
        assert set(features.labels.tolist()) == {-1}
    transform = run.encoder.transform
    for images in (names, opened):
        batch = torch.stack([transform(image) for image in images])
        with torch.inference_mode():
            assert np.allclose(run.encoder(batch).numpy(), expected, atol=1e-6)
    assert supancl.embed(run, names[0]).values.shape == (1, 8)
    assert supancl.embed(run, opened[0]).values.shape == (1, 8)


def test_arrays_are_embedded_as_those_of_an_archive(run, tmp_path):
    images = noise(20, 20, 20)
    source = supancl.embed(run, archive(tmp_path / "a.npz", train_images=images, test_images=noise(3, 20, 20)))
    assert len(source.labels) == 23  # all splits
    for given in (images, images[..., None], list(images), np.array([*images, None], object)[:20]):
        assert torch.equal(supancl.embed(run.encoder, given).values, source.values[:20])
    one = run.encoder.transform(images[0])
    with torch.inference_mode():
        assert torch.allclose(run.encoder(one[None]), source.values[:1], atol=1e-6)


def test_the_projector_of_a_run_is_a_layer(run):
    images = noise(4, 8, 8)
    by_folder, by_run = (supancl.embed(given, images, layer="projector").values for given in (run.folder, run))
    assert torch.equal(by_folder, by_run)
    assert by_run.shape == (4, 16)


@pytest.mark.parametrize(
    ("encoder", "images", "nouns"),
    [
        (7, noise(2, 8, 8), ["7", "run"]),
        ("nowhere", noise(2, 8, 8), ["nowhere"]),
        (None, noise(2, 8, 8) / 255, ["float64", "uint8"]),
        (None, "nowhere.jpg", ["nowhere.jpg"]),
        (None, (noise(2, 8, 8), [1, 2, 3]), ["(3,)", "2 images"]),
    ],
)
def test_what_cannot_be_embedded_is_explained_in_one_line(encoder, images, nouns, run):
    with pytest.raises(BadInput) as error:
        supancl.embed(run if encoder is None else encoder, images)
    assert_one_line(str(error.value), *nouns)
