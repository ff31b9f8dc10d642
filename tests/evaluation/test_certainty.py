"""What stands beside an accuracy: few images, chance, random weights, the start, and the verdict."""

import json
import shutil

import numpy as np
import pytest
import torch

from supancl import pretrain
from supancl.evaluation.certainty import baselines, plan_cross_validation
from supancl.evaluation.data import data_for, open_evaluation_data
from supancl.evaluation.encoder import EvaluatedEncoder, EvaluationOptions
from supancl.evaluation.results import RANDOM, START
from supancl.files import write_sealed_json
from supancl.probes import knn_leave_one_out
from supancl.probes.answers import Answers, chance
from supancl.probes.features import stratified_folds
from supancl.probes.knn import knn_answers
from supancl.runs.encoder_file import save_encoder
from supancl.runs.importing import describe_init
from tests.evaluation.made import encoder, knn, linear, run_folder, source, subject
from tests.helpers import archive, tiny_recipe

CPU = torch.device("cpu")
SELF_SUPERVISED = {"loss__alpha": 1.0}


def full() -> EvaluationOptions:
    return EvaluationOptions(CPU, baselines=True)


def own_run(tmp_path, images: int = 60, **settings):
    tmp_path.mkdir(exist_ok=True)
    path = source(tmp_path / "own.npz", train=images)
    return run_folder(tmp_path / "run", source=str(path), described=True, **settings)


def with_start(run, start) -> None:
    """Record a start in a run that was not trained."""
    content = json.loads((run / "recipe.json").read_text())
    first = encoder(5) if start.name == "start" else encoder()
    write_sealed_json(run / "recipe.json", content | {"init": describe_init(first, start)})


def images_of(run, **options) -> tuple[int, int] | None:
    """How many images are cross-validated over, and how many are only references."""
    evaluated = subject(run, EvaluationOptions(CPU, baselines=True, **options))
    folds = plan_cross_validation(evaluated, open_evaluation_data(evaluated, None, "held-out"))
    if folds is None:
        return None
    parts = list(folds(evaluated))
    tested = sum(len(part["test"]) for part in parts)
    return tested, len(parts[0]["train"]) + len(parts[0]["test"]) - tested


# --- few images -------------------------------------------------------------------------------------------------------


def test_labels_that_pretraining_used_are_never_tested(tmp_path):
    held_out = 12  # a fifth of 60
    assert images_of(own_run(tmp_path / "a", **SELF_SUPERVISED)) == (60, 0)
    assert images_of(own_run(tmp_path / "b")) is None  # only the held-out ones are left, and they are tested anyway
    hidden = own_run(tmp_path / "c", data__labelled=0.5)
    assert images_of(hidden) == (held_out + 24, 24)
    limited = own_run(tmp_path / "d", data__limit=20)
    assert images_of(limited) == (held_out + 28, 20)
    hidden_and_unused = own_run(tmp_path / "e", data__labelled=0.5, **SELF_SUPERVISED)
    assert images_of(hidden_and_unused) == (60, 0)


def test_labels_that_a_start_of_ours_may_have_used_count_as_used(tmp_path):
    run = own_run(tmp_path, **SELF_SUPERVISED)
    supervised = run_folder(tmp_path / "supervised", source=str(tmp_path / "own.npz"), described=True)
    for start in (supervised, tmp_path / "gone"):
        with_start(run, start)
        assert images_of(run) is None


def test_encoders_that_are_not_runs_may_be_tested_on_everything_unless_their_file_names_the_classes(tmp_path):
    data = source(tmp_path / "x.npz", train=60)
    for name, classes, expected in (("a", (), 60), ("b", ("cat",), 60), ("c", ("0", "1", "2"), None)):
        file = tmp_path / f"{name}.safetensors"
        save_encoder(file, encoder(), classes, "any")
        result = knn(subject(file, full()), str(data))
        assert result.get("cross_validated", {}).get("tested_images") == expected
        assert result["tested_images"] == 12


def test_cross_validation_is_five_folds(tmp_path):
    evaluated = subject(own_run(tmp_path, **SELF_SUPERVISED), full())
    data = data_for(evaluated, None)
    everyone = evaluated.features(data.held_out).and_also(evaluated.features(data.train))
    found, fold = knn(evaluated, k=(3,)), stratified_folds(everyone.labels)
    right = 0
    for number in range(5):
        said = knn_answers(everyone.take(fold != number), everyone.take(fold == number), (3,))[3]
        right += int((said == everyone.labels[fold == number]).sum())
    assert found["cross_validated"]["accuracy"] == pytest.approx(100 * right / 60)
    assert found["cross_validated"]["chance"] == pytest.approx(100 / 3)
    result = linear(evaluated)
    assert result["cross_validated"]["tested_images"] == 60
    assert result["cross_validated"]["accuracy"] > 50  # brightness can be learned


def test_an_encoder_trained_on_shuffled_labels_scores_at_chance(tmp_path):
    """Labels of noise, learned by heart: k-NN among the images it was trained on knows them, honest numbers do not."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (120, 2, 2), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    archive(tmp_path / "x.npz", train_images=images, train_labels=random.permutation(np.arange(120) % 3))
    settings = {"views__scale": [1.0, 1.0], "views__flip": 0.0, "views__jitter": 0.0, "train__monitor_every": 0}
    settings |= {"train__epochs": 20, "optimizer__lr": 0.3, "train__batch_size": 32, "optimizer__reference_batch": 32}
    recipe = tiny_recipe("crossentropy", data__source=str(tmp_path / "x.npz"), data__labelled=0.4, **settings)
    pretrain(recipe.with_set({"encoder.width": 32}), out=tmp_path / "run")
    evaluated = subject(tmp_path / "run", full())
    by_heart = knn_leave_one_out(evaluated.features(data_for(evaluated, None).train), 5)
    assert by_heart > 60
    for result in (knn(evaluated), linear(evaluated)):
        honest = result["cross_validated"]
        assert honest["accuracy_interval"][0] <= 100 / 3
        assert honest["tested_images"] == 84  # 30 held out, 54 with hidden labels; 36 were trained with


# --- baselines --------------------------------------------------------------------------------------------------------


def test_random_weights_are_compared_image_by_image_and_their_features_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    run = run_folder(tmp_path / "run", seed=7, source=str(source(tmp_path / "x.npz", train=90, test=120)))
    evaluated = subject(run, full())
    result = knn(evaluated, k=(5,))
    data = data_for(evaluated, None)
    random = EvaluatedEncoder("random", dict(baselines(evaluated))[RANDOM], EvaluationOptions(CPU), evaluated.reporter)
    truth, answers = data.held_out.labels, []
    for one in (evaluated, random):
        said = knn_answers(one.features(data.train), one.features(data.held_out), (5,))[5]
        answers.append(Answers(said == truth, truth, None))
    (row,) = result["baselines"]
    assert (row["name"], row["weights"], row["accuracy"]) == (RANDOM, random.weights, answers[1].value)
    gap = answers[0].minus(answers[1])
    assert [row["difference"], *row["difference_interval"]] == pytest.approx(list(gap))
    assert result["chance"] == chance(data.train.labels)
    # another run of this architecture, in another process: nothing of random weights is computed again
    embedded = []
    monkeypatch.setattr("supancl.evaluation.encoder.embed", lambda *_: embedded.append(1))
    assert knn(subject(run, full()), k=(5,))["baselines"] == result["baselines"]
    assert embedded == []


def test_the_start_is_compared_if_it_is_still_the_same(tmp_path):
    run = run_folder(tmp_path / "run", seed=1, source=str(source(tmp_path / "x.npz", train=90, test=120)))
    start = run_folder(tmp_path / "start", seed=5)
    with_start(run, start)
    result = knn(subject(run, full()))
    assert [row["name"] for row in result["baselines"]] == [RANDOM, START]
    assert result["baselines"][1]["weights"] == subject(start).weights
    save_encoder(start / "encoder.safetensors", encoder(6), (), "any")
    for break_start in (lambda: None, lambda: shutil.rmtree(start)):
        break_start()
        evaluated = subject(run, full())
        result = knn(evaluated)
        assert [row["name"] for row in result["baselines"]] == [RANDOM]
        assert len(evaluated.reporter.warnings) == 1
