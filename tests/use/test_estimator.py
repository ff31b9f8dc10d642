"""`ImageEncoder`: scikit-learn's own checks, and what pipelines, searches and pickles do with it."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import supancl
from supancl import BadInput, ImageEncoder, Interrupted
from supancl.use import estimator as module
from supancl.use.estimator import ALWAYS, number_classes
from tests.helpers import NAType

FAST = {
    "encoder.name": "cnn", "encoder.width": 8, "views.size": 8, "heads.projector.out": 8, "heads.projector.hidden": [8],
    "heads.predictor.hidden": [8], "batch_size": 16,
}  # fmt: skip
# checks that need something that is not installed, or a setting of scipy
MAY_BE_SKIPPED = {
    "check_array_api_input",
    "check_set_output_transform_pandas",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_pandas",
}
# by name, with the reason
EXPECTED_TO_FAIL: dict[str, str] = {}


def images(count: int = 32, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Two classes: a bright left half, or a bright right one."""
    random, labels = np.random.default_rng(0), np.arange(count) % 2
    pixels = random.integers(0, 100, (count, 8, 8, channels), np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[:, 4 * label : 4 * label + 4] += np.uint8(120)
    return pixels, labels


def fast(**parameters) -> ImageEncoder:
    return ImageEncoder(**{"epochs": 1, "settings": FAST, **parameters})


@pytest.fixture(scope="module")
def fitted() -> ImageEncoder:
    return fast().fit(*images())


def test_scikit_learns_own_checks_pass():
    checks = check_estimator(
        ImageEncoder(epochs=1), expected_failed_checks=EXPECTED_TO_FAIL, on_skip=None, on_fail="raise"
    )
    by_status = {
        status: {check["check_name"] for check in checks if check["status"] == status}
        for status in ("passed", "skipped", "xfail", "failed")
    }
    assert len(EXPECTED_TO_FAIL) <= 5
    assert by_status["xfail"] == set(EXPECTED_TO_FAIL)
    assert by_status["skipped"] <= MAY_BE_SKIPPED
    assert len(by_status["passed"]) >= 35
    assert {"check_fit_idempotent", "check_transformer_general", "check_estimators_pickle"} <= by_status["passed"]
    assert ImageEncoder().__sklearn_tags__().input_tags.two_d_array


def test_features_are_those_of_pretrain_and_embed(fitted, tmp_path):
    pixels, labels = images()
    settings = {**ALWAYS, "train.monitor_every": 0, **FAST, "epochs": 1}
    run = supancl.pretrain("auto.supsiam", (pixels, labels), tmp_path / "run", **settings)
    expected = supancl.embed(run, pixels).values.numpy()
    features = fitted.transform(pixels)
    assert features.dtype == np.float32
    assert np.array_equal(features, expected)


def test_equal_seeds_give_equal_features(fitted):
    pixels, labels = images()
    again, other = fast().fit(pixels, labels), fast(random_state=1).fit(pixels, labels)
    assert np.array_equal(again.transform(pixels), fitted.transform(pixels))
    assert not np.array_equal(other.transform(pixels), fitted.transform(pixels))
    drawn = fast(random_state=np.random.RandomState(3)).fit(pixels, labels)
    assert drawn.recipe_.train.seed == np.random.RandomState(3).randint(2**31 - 1)


def test_pillow_images_and_paths_give_the_features_of_arrays(fitted, tmp_path):
    pixels, labels = images()
    pillow = [Image.fromarray(image) for image in pixels]
    for i, image in enumerate(pillow):
        image.save(tmp_path / f"{i}.png")
    paths = [tmp_path / f"{i}.png" for i in range(len(pillow))]
    for given in (pillow, paths, list(map(str, paths)), list(pixels), np.array(list(map(str, paths)))):
        assert np.array_equal(fitted.transform(given), fitted.transform(pixels))
    assert np.array_equal(fast().fit(paths, labels).transform(pixels), fitted.transform(pixels))


def test_rows_of_pixels_are_images_of_that_shape(fitted):
    pixels, labels = images()
    rows = pixels.reshape(len(pixels), -1).astype(float)  # as scikit-learn's data sets come
    by_rows = fast(image_shape=(8, 8, 3)).fit(rows, labels)
    assert np.array_equal(by_rows.transform(rows), fitted.transform(pixels))
    assert by_rows.n_features_in_ == fitted.n_features_in_ == 192


def test_vectors_use_the_linear_encoder_and_masks_of_the_toy_study():
    random = np.random.default_rng(0)
    rows = random.normal(5, 3, (60, 10)) * np.arange(1, 11)
    encoder = ImageEncoder(epochs=2).fit(rows, np.arange(60) % 3)
    assert (encoder.recipe_.encoder.name, encoder.recipe_.views.kind) == ("linear", "masks")
    assert encoder.recipe_.encoder.size == 10
    assert encoder.transform(rows).shape == (60, 10)
    # units do not matter: the columns are standardised
    assert np.allclose(ImageEncoder(epochs=2).fit(rows * 1000, np.arange(60) % 3).transform(rows * 1000),
                       encoder.transform(rows), atol=1e-4)  # fmt: skip


@pytest.mark.parametrize(
    ("method", "y", "trained"),
    [
        ("supsiam", None, "simsiam"),
        ("supcon", ["cat"] * 20 + [""] * 4, "simclr"),
        ("supsiam", ["cat", "dog", "-1"] * 8, "supsiam"),
    ],
)
def test_without_two_classes_the_variant_without_labels_is_trained(method, y, trained):
    rows = np.random.default_rng(0).normal(size=(24, 4))
    assert ImageEncoder(method, epochs=1, alpha=0.3).fit(rows, y).method_ == trained


def test_labels_of_any_kind_are_numbered():
    nan = float("nan")
    for y, numbers, classes in (
        ([5, -1, 3, 5], [1, -1, 0, 1], [3, 5]),
        ([5.0, nan, 3.0, -1.0], [1, -1, 0, -1], [3.0, 5.0]),
        (["b", "", "a", "-1"], [1, -1, 0, -1], ["a", "b"]),
        ([True, False, True, True], [1, 0, 1, 1], [False, True]),
        (np.array(["b", None, "a", nan], object), [1, -1, 0, -1], ["a", "b"]),
        (["b", nan, "a", None], [1, -1, 0, -1], ["a", "b"]),  # NumPy makes the text 'nan' of it
        (["b", NAType(), "a", "nan"], [1, -1, 0, 2], ["a", "b", "nan"]),
        ([5, None, 3, 5], [1, -1, 0, 1], [3, 5]),
        (np.array([5, NAType(), 3, 5], object), [1, -1, 0, 1], [3, 5]),
    ):
        numbered, names = number_classes(y, 4)
        assert (numbered.tolist(), names.tolist()) == (numbers, classes)


def test_it_works_in_a_pipeline_a_clone_and_a_search():
    pixels, labels = images()
    pipeline = make_pipeline(fast(), LogisticRegression())
    search = GridSearchCV(pipeline, {"imageencoder__alpha": [0.2, 0.8]}, cv=2, error_score="raise").fit(pixels, labels)
    assert search.best_score_ > 0.6
    best = search.best_estimator_[0]
    assert best.recipe_.loss.alpha == search.best_params_["imageencoder__alpha"]
    copied = clone(best)
    assert copied.get_params() == best.get_params()
    with pytest.raises(NotFittedError):
        copied.transform(pixels)


def test_pickles_and_folders_hold_the_same_features(fitted, tmp_path):
    pixels, _ = images()
    expected = fitted.transform(pixels)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).transform(pixels), expected)
    assert fitted.save(tmp_path / "encoder") == tmp_path / "encoder"
    loaded = ImageEncoder.load(tmp_path / "encoder")
    assert np.array_equal(loaded.transform(pixels), expected)
    assert loaded.get_params() == fitted.get_params()
    assert (loaded.method_, loaded.recipe_, loaded.classes_.tolist()) == ("supsiam", fitted.recipe_, [0, 1])
    assert loaded.get_feature_names_out().tolist() == [f"imageencoder{i}" for i in range(8)]
    # every command takes the folder
    assert np.array_equal(supancl.embed(tmp_path / "encoder", pixels).values.numpy(), expected)


def test_a_changed_folder_is_refused(fitted, tmp_path):
    folder = fitted.save(tmp_path / "encoder")
    with pytest.raises(BadInput, match="exists"):
        fitted.save(folder)
    content = json.loads((folder / "estimator.json").read_text())
    (folder / "estimator.json").write_text(json.dumps({**content, "version": 9}))
    with pytest.raises(BadInput, match=r"estimator\.json is damaged"):
        ImageEncoder.load(folder)
    with pytest.raises(BadInput, match=r"ImageEncoder\.save"):
        ImageEncoder.load(tmp_path)


def test_ctrl_c_and_a_collapse_are_told_as_scikit_learn_users_know_them(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(24, 4))
    original = module.pretrain

    def interrupted(*arguments, **options):
        raise Interrupted("stopped", 2)

    monkeypatch.setattr(module, "pretrain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ImageEncoder(epochs=1).fit(rows)
    monkeypatch.setattr(module, "pretrain", lambda *a, **options: CollapsedRun(original(*a, **options)))
    with pytest.warns(ConvergenceWarning, match="collapsed") as said:
        ImageEncoder(epochs=1).fit(rows)
    assert said[0].filename == __file__


class CollapsedRun:
    def __init__(self, run):
        run = replace(run, collapsed=True)
        self.encoder, self.recipe, self.collapsed = run.encoder, run.recipe, run.collapsed
