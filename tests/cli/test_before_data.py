"""What is wrong with a request whatever the data are is said before they are read, which may take an hour."""

import numpy as np
import pytest

from supancl.cli import detect
from supancl.core.encoders import EncoderSpec
from supancl.data.sources import benchmarks
from supancl.detect import train as detect_train
from supancl.errors import BadInput
from supancl.evaluate import EvaluatedEncoder, sources
from supancl.weights.encoder_file import save_encoder
from tests.evaluate.made import encoder, run_folder, source
from tests.files import archive, assert_refused, mentions, noise, supancl


def refuse(*_: object, **__: object) -> None:
    pytest.fail("too late: it has been read")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Runs to judge and sources to judge them on, none of which can be read."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "other"):
        run_folder(tmp_path / name)
    (tmp_path / "other" / "evaluate").write_text("in the way")
    vectors = EncoderSpec("linear", channels=1, size=4, width=3, mean=(0.0,), std=(1.0,))
    save_encoder(tmp_path / "vectors.safetensors", encoder(spec=vectors), (), "x")
    source(tmp_path / "x.npz", train=60, val=30, test=30)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "one").touch()
    save_encoder(tmp_path / "wide.safetensors", encoder(spec=EncoderSpec("cnn", 3, 8, 12)), (), "x")
    for module in (sources, detect, detect_train, benchmarks):
        for reader in ("open_source", "open_benchmark", "open_scenes", "open_test"):
            if hasattr(module, reader):
                monkeypatch.setattr(module, reader, refuse)
    return tmp_path


def test_an_unknown_encoder_of_a_run_is_refused_before_images_are_read(tmp_path, capsys, monkeypatch):
    archive(tmp_path / "x.npz")
    monkeypatch.setattr("supancl.training.pretrain.open_data", refuse)
    words = ("pretrain", "digits.supsiam", "--data", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"))
    assert_refused(supancl(capsys, *words, "--set", "encoder.name=resnet19"), "'resnet19'", "'resnet18'")


NO_LAYER = ("cnn", "layer 'tow'", "pooled, 0, 1")
IN_THE_WAY = ("write to other", "Not a directory", "copy")
VECTORS, ON_X = "vectors.safetensors", ("--data", "x.npz")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *[
            ((f"evaluate {name}", "run", *ON_X, "--layer", "tow"), NO_LAYER)
            for name in ("knn", "linear", "variance", "transfer", "fewshot")
        ],
        (("embed", "run", *ON_X, "--layer", "tow", "--out", "e.npz"), NO_LAYER),
        (
            ("evaluate transfer", "run", VECTORS, *ON_X, "--layer", "5"),
            ("linear", "layer '5'", "pooled"),
        ),
        *[((f"evaluate {name}", "other", *ON_X), IN_THE_WAY) for name in ("knn", "linear", "variance", "fewshot")],
        (("evaluate transfer", "run", "other", *ON_X), IN_THE_WAY),
        (
            ("embed", "run", *ON_X, "--out", "x.npz/e.npz"),
            ("x.npz", "Not a directory", "--out"),
        ),
        (("evaluate finetune", "run", *ON_X, "--out", "there"), ("there", "exists", "--out")),
        (("evaluate finetune", "run", *ON_X, "--out", "x.npz/tuned"), ("x.npz/tuned", "Not a directory", "--out")),
        (("evaluate finetune", VECTORS, "--data", "toy"), ("toy", "fine-tuning", "vectors")),
        (
            ("evaluate linear", VECTORS, "--data", "toy", "--probe", "sgd", "--augmented"),
            ("vectors.safetensors", "--augmented", "vectors"),
        ),
        (("evaluate transfer", "run", *ON_X, "--data", "y.npz"), ("y.npz", "x.npz")),
        (("evaluate fewshot", "run", *ON_X, "--data", "pets@there"), ("pets", "there")),
        (("detect train", "wide.safetensors", "--data", ".", "--out", "new"), ("cnn", "ResNet")),
        (
            ("detect train", "random:resnet18", "--data", ".", "--out", "x.npz/new"),
            ("x.npz/new", "Not a directory", "--out"),
        ),
        (("import", "x.npz", "--out", "wide.safetensors"), ("wide.safetensors", "--out")),
        (
            ("import", "x.npz", "--out", "x.npz/new"),
            ("x.npz/new", "Not a directory", "--out"),
        ),
        (
            ("paper", "table", "5", "nowhere", "--out", "x.npz/5.md"),
            ("--out x.npz/5.md", "Not a directory"),
        ),
    ],
)
def test_a_request_that_no_data_can_mend_is_refused_first(words, told, place, capsys):
    before = sorted(place.rglob("*"))
    said = supancl(capsys, *words[0].split(), *words[1:])
    assert_refused(said, *told)
    assert sorted(place.rglob("*")) == before


def test_a_detector_is_tested_after_asking_whether_its_scores_can_be_kept(place, monkeypatch, capsys):
    monkeypatch.setattr(detect, "load_detector", lambda path: None)
    said = supancl(capsys, "detect", "eval", "there", "--data", ".", "--device", "cpu", "--out", "x.npz/scores")
    assert_refused(said, "x.npz/scores", "Not a directory", "--out")


def test_a_layer_that_gives_nothing_to_take_is_refused_by_a_look_at_a_blank_image():
    made = encoder()
    made.check_layer("0")
    made.check_layer("pooled")

    class Pair(type(made.body[0])):
        def forward(self, images):
            return super().forward(images), images

    made.train()
    norm = made.body[1].forward
    made.body[0].__class__, made.body[1].forward = Pair, lambda pair: norm(pair[0])
    with pytest.raises(BadInput, match=mentions("layer '0'", "cnn", "vectors")):
        made.check_layer("0")
    assert made.training


UNLABELLED = {"train_labels": np.full(12, -1), "val_images": noise(6, 8, 8), "val_labels": np.arange(6) % 2}


@pytest.mark.parametrize(
    ("protocol", "arrays", "told"),
    [
        ("knn", UNLABELLED, ("d.npz", "k-NN", "labelled", "0", "6")),
        ("knn", {"train_labels": np.zeros(12, int)}, ("d.npz", "class '0'")),
        (
            "linear",
            {"train_labels": np.arange(12), "val_images": noise(6, 8, 8), "val_labels": np.arange(6)},
            ("d.npz", "1 training image"),
        ),
    ],
)
def test_labels_that_cannot_be_judged_by_are_refused_before_features_are_taken(
    protocol, arrays, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "run")
    archive(tmp_path / "d.npz", train_images=noise(12, 8, 8), **arrays)
    monkeypatch.setattr(EvaluatedEncoder, "features", refuse)
    assert_refused(supancl(capsys, "evaluate", protocol, "run", "--data", "d.npz"), *told)
