"""What is wrong with a request whatever the data are is said before they are read, which may take an hour."""

import pytest

from supancl.core.encoders import EncoderSpec
from supancl.data.sources import benchmarks
from supancl.detection import train as detect_train
from supancl.evaluation import sources
from supancl.runs.encoder_file import save_encoder
from supancl.use.detect import detect
from tests.evaluate.made import encoder, run_folder, source
from tests.files import archive, assert_refused, supancl


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
    monkeypatch.setattr("supancl.training.start.open_data", refuse)
    words = ("pretrain", "digits.supsiam", "--data", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"))
    assert_refused(supancl(capsys, *words, "--set", "encoder.name=resnet19"), "'resnet19'", "'resnet18'")


ON_X = ("--data", "x.npz")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("evaluate knn", "run", *ON_X, "--layer", "tow"), ("cnn", "layer 'tow'")),
        (("evaluate linear", "other", *ON_X), ("other", "Not a directory")),
        (("embed", "run", *ON_X, "--out", "x.npz/e.npz"), ("x.npz", "Not a directory", "--out")),
        (("evaluate finetune", "run", *ON_X, "--out", "there"), ("there", "exists", "--out")),
        (("evaluate finetune", "vectors.safetensors", "--data", "toy"), ("toy", "fine-tuning", "vectors")),
        (("detect train", "wide.safetensors", "--data", ".", "--out", "new"), ("cnn", "ResNet")),
        (("import", "x.npz", "--out", "x.npz/new"), ("x.npz/new", "Not a directory", "--out")),
    ],
)
def test_a_request_that_no_data_can_mend_is_refused_first(words, told, place, capsys):
    before = sorted(place.rglob("*"))
    said = supancl(capsys, *words[0].split(), *words[1:])
    assert_refused(said, *told)
    assert sorted(place.rglob("*")) == before
