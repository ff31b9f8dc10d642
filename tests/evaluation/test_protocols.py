"""The protocols from an encoder and a source to a result: what is chosen on what, and what is kept of it."""

import json

import numpy as np
import pytest
import torch

from supancl.evaluation import Linear
from supancl.evaluation.data import data_for
from supancl.evaluation.encoder import EvaluationOptions
from supancl.evaluation.protocols import augmented_epochs
from supancl.probes import Features, knn_accuracy, linear_probe
from supancl.training.monitor import linear_accuracy
from supancl.use.predicting import PredictSettings, predict_labels
from tests.evaluation.made import bright, knn, linear, run_folder, source, subject, transferred
from tests.helpers import archive, noise, saved_result

CPU = torch.device("cpu")


@pytest.fixture
def run(tmp_path):
    return subject(run_folder(tmp_path / "run", source=str(source(tmp_path / "own.npz", train=90, test=30))))


def kept(tmp_path, name):
    return saved_result(tmp_path / "run" / "evaluate" / f"{name}.json")


def by_hand(run, images: np.ndarray, labels: np.ndarray) -> Features:
    """Features of 8 px images by the encoder alone: at its own size there is no margin and nothing to resize."""
    with torch.no_grad():
        values = run.encoder((torch.from_numpy(images)[:, None] / 255 - 0.5) / 0.5)
    return Features(values, torch.from_numpy(labels))


def close(one: Features, other: Features) -> bool:
    return torch.equal(one.labels, other.labels) and torch.allclose(one.values, other.values, atol=1e-5)


# --- each protocol by hand --------------------------------------------------------------------------------------------


def test_knn_is_that_of_the_features(run, tmp_path):
    result = knn(run, k=(3, 7))
    reference, queries = by_hand(run, *bright(90)), by_hand(run, *bright(30, seed=2))
    assert close(run.features(data_for(run, None).train), reference)
    assert result["by_k"] == pytest.approx(
        {"3": knn_accuracy(reference, queries, 3), "7": knn_accuracy(reference, queries, 7)}
    )
    assert (result["accuracy"], result["k"]) == (result["by_k"]["3"], 3)
    assert (result["references"], result["queries"], result["judged"]) == (90, 30, "test")
    assert kept(tmp_path, "knn-k3") == json.loads(json.dumps(result))
    alone = knn(run, leave_one_out=True, k=(3,))
    assert (alone["references"], alone["queries"]) == (30, 30)


def test_linear_is_that_of_the_features(run, tmp_path):
    result = linear(run)
    train, test = by_hand(run, *bright(90)), by_hand(run, *bright(30, seed=2))
    expected = linear_probe(train, test)
    assert (result["weight"], result["accuracy"]) == (expected.weight, pytest.approx(expected.accuracy))
    assert kept(tmp_path, "linear")["probe"] == "lbfgs"
    sgd = linear(run, probe="sgd", epochs=3, lr=1.0)
    assert (sgd["epochs"], len(sgd["losses"]), sgd["queries"]) == (3, 3, 30)


# --- honest choices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [transferred, linear], ids=["transfer", "linear"])
def test_nothing_is_chosen_on_the_test_images(protocol, run, tmp_path):
    """Other test images, with labels at random: another accuracy, every choice the same."""
    path = source(tmp_path / "x.npz", train=60, val=0, test=60)
    first = protocol(run, str(path))
    with np.load(path) as arrays:
        content = dict(arrays) | {"test_images": noise(60, 8, 8, seed=9)}
    content["test_labels"] = np.random.default_rng(0).permutation(content["test_labels"])
    second = protocol(run, str(archive(path, **content)))
    assert first["accuracy"] > second["accuracy"]
    chosen = ("weight", "tried", "held_out", "images")
    assert [first[key] for key in chosen] == [second[key] for key in chosen]


# --- augmented views --------------------------------------------------------------------------------------------------


def test_augmented_epochs_are_new_crops_of_every_labelled_image(tmp_path):
    path = source(tmp_path / "x.npz", train=50, test=12)
    unit = subject(run_folder(tmp_path / "run"), EvaluationOptions(CPU, normalize=True))
    epochs = augmented_epochs(unit, data_for(unit, str(path)).train, Linear(probe="sgd", probe_batch=16))
    first, again, second = list(epochs(0)), list(epochs(0)), list(epochs(1))
    assert [len(labels) for _, labels in first] == [16, 16, 16, 2]
    assert all(torch.equal(one, other) for (one, _), (other, _) in zip(first, again, strict=True))
    assert not torch.allclose(first[0][0], second[0][0])
    assert sorted(torch.cat([labels for _, labels in second]).tolist()) == sorted(bright(50)[1].tolist())
    assert torch.allclose(first[0][0].norm(dim=1), torch.ones(16), atol=1e-5)  # as the test features are
    result = linear(unit, str(path), probe="sgd", epochs=2, lr=1.0, augmented=True)
    assert (result["augmented"], result["classes"], len(result["losses"])) == (True, 3, 2)


# --- which images choose the ridge ------------------------------------------------------------------------------------


@pytest.fixture
def few_may_choose(monkeypatch):
    monkeypatch.setattr("supancl.probes.linear.MIN_TO_CHOOSE", 1)


def features_of(run, data) -> tuple[Features, Features]:
    return run.features(data.train), run.features(data.held_out)


@pytest.mark.usefixtures("few_may_choose")
def test_the_held_out_images_choose_for_the_test_split(tmp_path):
    own = str(source(tmp_path / "own.npz", train=90, test=60))
    run = subject(run_folder(tmp_path / "run", source=own, described=True, data__holdout=0.2))
    data = data_for(run, None)
    result = linear(run, split="test")
    train, held_out = features_of(run, data)
    expected = linear_probe(train, run.features(data.test), held_out)
    assert (result["accuracy"], result["weight"]) == (expected.accuracy, expected.weight)
    assert (result["chosen_on"], result["chosen_on_images"]) == ("held-out", 18)
    assert result["images"] == [72, 18, 60]
    assert (result["split"], result["judged"]) == ("test", "test")


@pytest.mark.usefixtures("few_may_choose")
@pytest.mark.parametrize("splits", [{"train": 90}, {"train": 60, "val": 30, "test": 30}], ids=["share", "val"])
def test_held_out_images_that_are_judged_choose_by_halves(splits, tmp_path):
    own = str(source(tmp_path / "own.npz", **splits))
    run = subject(run_folder(tmp_path / "run", source=own, described=True))
    result = linear(run)
    train, held_out = features_of(run, data_for(run, None))
    expected = linear_probe(train, held_out, "halves")
    assert (result["accuracy"], result["weight"]) == (expected.accuracy, expected.weight)
    assert result["weight_by_half"] == list(expected.weight_by_half)
    assert (result["chosen_on"], result["chosen_on_images"]) == ("other half", len(held_out.labels))
    assert isinstance(kept(tmp_path, "linear")["weight"], float)


@pytest.mark.usefixtures("few_may_choose")
@pytest.mark.parametrize("holdout", [None, 0.0], ids=["the test split was held out", "nothing was held out"])
def test_a_ridge_chosen_on_trained_images_says_so(holdout, tmp_path):
    """A test split chooses nothing, so a part of the training images does."""
    own = str(source(tmp_path / "own.npz", train=90, test=60))
    run = subject(run_folder(tmp_path / "run", source=own, described=True, data__holdout=holdout))
    result = linear(run)
    data = data_for(run, None)
    expected = linear_probe(run.features(data.train), run.features(data.test))
    assert (result["accuracy"], result["weight"]) == (expected.accuracy, expected.weight)
    assert (result["chosen_on"], result["chosen_on_images"], result["judged"]) == ("trained images", 9, "test")


@pytest.mark.usefixtures("few_may_choose")
def test_other_data_and_other_encoders_choose_on_a_part_of_train(run, tmp_path):
    other = str(source(tmp_path / "other.npz", train=60, val=30, test=30))
    for who in (run, subject(tmp_path / "run" / "encoder.safetensors")):
        result = linear(who, other)
        assert (result["chosen_on"], result["chosen_on_images"]) == ("10% of training", 6)


def test_evaluate_predict_and_the_monitor_have_one_ridge(tmp_path):
    """On a few images each of them would choose another one: nothing chooses there."""
    own = str(source(tmp_path / "own.npz", train=160, val=48))
    run = subject(run_folder(tmp_path / "run", source=own, described=True))
    result, predicted = linear(run), predict_labels(run, own, PredictSettings(every_image=True)).summary
    train, held_out = features_of(run, data_for(run, None))
    assert result["weight"] == predicted["ridge"] == pytest.approx(1.6)
    assert result["accuracy"] == predicted["accuracy"] == linear_accuracy(train, held_out)
    assert result["chosen_on"] == predicted["ridge_chosen_on"] == "none"
