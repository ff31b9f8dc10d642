"""A newcomer's first week: runs do not get into each other, faults are placed."""

import csv
import os
import subprocess
from dataclasses import make_dataclass, replace
from pathlib import Path

import pytest
import torch

from supancl import Align, BadInput, Interrupted, Reporter, cli, errors, pretrain, recipe, register
from supancl.cli import dispatch
from supancl.evaluate.naming import data_name
from supancl.recipes import RECIPES
from supancl.recipes import plugins as own
from supancl.sweeps import runner
from supancl.training.preflight import is_same_or_moved
from supancl.weights.encoder_file import load_encoder
from supancl.weights.importing import open_encoder
from supancl.weights.run_folder import RunFolder
from tests.evaluate.made import run_folder
from tests.files import TINY, assert_mentions, assert_refused, class_folders, contents, mentions, supancl
from tests.tiny import assert_same_bits, final_state, tiny_data, tiny_recipe

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_method.py"


# --- one folder, one run ----------------------------------------------------------------------------------------------


def test_a_study_does_not_get_into_a_run(tmp_path, capsys):
    run = run_folder(tmp_path / "run")
    before = contents(run)
    words = ("digits.supsiam", "--data", "digits", "--epochs", "1", "--out", run)
    for command in (("paper", "study", "positives"), ("alpha",), ("paper", "collapse")):
        said = supancl(capsys, *command, *words)
        assert said.code == 2
        assert_refused(said, run, "a single run", "--out")
    assert contents(run) == before


def test_a_run_does_not_get_between_other_runs(tmp_path, capsys):
    run_folder(tmp_path / "runs" / "first")
    before = contents(tmp_path)
    said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--out", tmp_path / "runs")
    assert said.code == 2
    assert_refused(said, f"{tmp_path}/runs", "folder of runs", "first", "--out", f"{tmp_path}/runs/NAME")
    for words in (("pretrain",), ("pretrain", "digits.supsiam", *TINY)):
        said = supancl(capsys, *words, "--resume", "--out", tmp_path / "runs")
        assert said.code == 2
        assert_refused(said, f"{tmp_path}/runs", "folder of runs", f"--out {tmp_path}/runs/first")
    assert contents(tmp_path) == before


def test_a_run_does_not_get_into_that_of_a_detector(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "detect.json").write_text("{}")
    for more in ((), ("--resume",)):
        said = supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--out", tmp_path / "run", *more)
        assert said.code == 2
        assert_refused(said, f"{tmp_path}/run", "supancl detect train", "--out")
    assert contents(tmp_path) == {"run": None, "run/detect.json": b"{}"}


def test_a_folder_that_is_no_run_is_answered_with_a_run_in_it(tmp_path, capsys):
    run_folder(tmp_path / "runs" / "first")
    said = supancl(capsys, "evaluate", "knn", tmp_path / "runs", "--data", "digits")
    assert said.code == 2
    assert_refused(said, f"{tmp_path}/runs", "encoder.safetensors", f"'{tmp_path}/runs/first'")


def test_half_a_recipe_is_named_by_tables(tmp_path, capsys):
    run = run_folder(tmp_path / "run")
    text = (run / "recipe.json").read_text()
    (run / "recipe.json").write_text(text[: len(text) // 2])
    said = supancl(capsys, "paper", "table", "1", run)
    assert said.code == 2
    assert_refused(said, f"{run}/recipe.json", "--out")


def test_tables_without_a_name_ask_for_that_alone(capsys):
    assert "required: NAME (see" in supancl(capsys, "paper", "table").err


# --- data that move ---------------------------------------------------------------------------------------------------


class StopAt(Reporter):
    def on_step(self, step, row):
        if step == 3:
            raise Interrupted("stopped", 2)


def photos_run(tmp_path, name, reporter=None):
    chosen = recipe("digits.supsiam").with_set(
        {
            "data.source": str(tmp_path / "photos"),
            "train.epochs": 2,
            "train.batch_size": 4,
            "encoder.width": 8,
            "pool.size": 16,
            "train.device": "cpu",
            "train.checkpoint_every": 2,
            "train.monitor_every": 0,
        }
    )
    return pretrain(chosen, out=tmp_path / name, reporter=reporter)


def test_a_run_goes_on_where_its_data_have_been_moved_to(tmp_path, capsys):
    class_folders(tmp_path / "photos", each=8)
    photos_run(tmp_path, "whole")
    with pytest.raises(Interrupted):
        photos_run(tmp_path, "run", StopAt())
    resume = ("pretrain", "--resume", "--out", tmp_path / "run", "--quiet", "--data")
    said = supancl(capsys, *resume, class_folders(tmp_path / "copy", each=8))  # its own are where they were
    assert said.code == 2
    assert "differs from data.source" in said.err
    (tmp_path / "photos").rename(tmp_path / "moved")
    said = supancl(capsys, *resume, class_folders(tmp_path / "others", ("cat", "cow"), each=8))
    assert said.code == 2
    assert_mentions(said.err, "data", "changed")
    said = supancl(capsys, *resume, tmp_path / "moved")
    assert said.code == 0, said.err
    assert_same_bits(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))
    assert RunFolder(tmp_path / "run").read_recipe()[0].data.source == str(tmp_path / "moved")
    assert supancl(capsys, "evaluate", "knn", tmp_path / "run", "--device", "cpu").code == 0


def test_a_finished_run_keeps_the_new_place_too_and_gets_its_encoder_back(tmp_path, capsys):
    class_folders(tmp_path / "photos", each=8)
    run = RunFolder(photos_run(tmp_path, "run").folder)
    weights, before = load_encoder(run.path).state_dict(), run.read_recipe()[0]
    (tmp_path / "photos").rename(tmp_path / "moved")
    run.encoder.write_bytes(run.encoder.read_bytes()[:100])
    knn = ("evaluate", "knn", run.path, "--device", "cpu")
    assert_mentions(supancl(capsys, *knn).err, "encoder.safetensors", "--resume")
    resume = ("pretrain", "--resume", "--out", run.path, "--quiet", "--on-nan", "skip", "--data", tmp_path / "moved")
    assert supancl(capsys, *resume).code == 0
    assert_same_bits(load_encoder(run.path).state_dict(), weights)
    after = run.read_recipe()[0]
    assert after.data.source == str(tmp_path / "moved")
    assert after.train == before.train  # how it was trained stays as it was
    assert supancl(capsys, *knn).code == 0
    written = run.encoder.stat().st_mtime_ns
    assert supancl(capsys, *resume).code == 0
    assert run.encoder.stat().st_mtime_ns == written  # a whole one is left as it is


@pytest.mark.parametrize(
    ("kept", "there", "moved"),
    [
        ("{}/photos", ["photos"], False),
        ("{}/photos", [], True),
        ("{}/me@home", [], True),
        ("{}/s-{{000..001}}.tar", ["s-000.tar", "s-001.tar"], False),
        ("{}/s-{{000..001}}.tar", ["s-000.tar"], True),
        ("{}/*.tar", ["s-000.tar"], False),
        ("{}/*.tar", [], True),
        ("{}/shards", ["shards"], False),
        ("pets@{}/sets", ["sets"], False),
        ("pets@{}/sets", [], True),
        ("torchvision:CIFAR10@{}/sets", [], True),
        ("hf:{}/set", ["set"], False),
        ("hf:{}/set", [], True),
        ("hf:someone/set", [], False),
        ("digits", [], False),
        ("photos", [], False),
        ("", [], False),
    ],
)
def test_another_place_is_taken_where_the_kept_one_is_gone_alone(kept, there, moved, tmp_path):
    for name in there:
        (tmp_path / name).touch() if name.endswith(".tar") else (tmp_path / name).mkdir()
    kept = kept.format(tmp_path)
    assert is_same_or_moved("/elsewhere", kept) is moved
    assert is_same_or_moved(kept, kept)


def test_a_name_keeps_its_letters_and_fits_in_a_file_name():
    assert data_name("/data/Fotos Müller") == "Fotos-Müller"
    assert data_name("/data/Mu\u0308ller") == "Müller"  # as macOS spells it
    assert data_name("/data/花 と 鳥.npz") == "花-と-鳥"
    assert data_name("/data/" + "鳥" * 84) == "鳥" * 66
    assert data_name("/data/a b:c") == "c"


def test_nothing_that_a_table_lists_could_be_read(tmp_path, capsys):
    with open(tmp_path / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), ("nowhere/a.png", "cat"), ("nowhere/b.png", "dog")])
    said = supancl(capsys, "data", "show", tmp_path / "t.csv")
    assert said.code == 2
    assert_mentions(said.err, "no training image", "nowhere/a.png")


def test_a_table_in_another_encoding_is_told_which(tmp_path, capsys):
    (tmp_path / "t.csv").write_bytes("path,label\nMüller.png,cat\n".encode("latin-1"))
    assert_mentions(supancl(capsys, "data", "show", tmp_path / "t.csv").err, "t.csv", "encoding")


# --- encoders of others -----------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_to_be_fetched_again(tmp_path):
    (tmp_path / "page.pth").write_text("<!DOCTYPE html>")
    with pytest.raises(BadInput, match=mentions("damaged", "tensors", "again")):
        open_encoder(tmp_path / "page.pth")


@pytest.mark.parametrize("given", [{"mean": (123.7, 116.3, 103.5)}, {"std": (58.4, 57.1, 57.4)}])
def test_statistics_of_bytes_are_refused(tmp_path, given):
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(BadInput, match=r"(mean 123.7|std 58.4): .*divide by 255"):
        open_encoder(tmp_path / "w.pth", **given)


# --- a file of one's own ----------------------------------------------------------------------------------------------


def run_own(tmp_path, forks, changed, *words):
    (tmp_path / "my losses.py").write_text(changed)
    command = [f"{Path(forks['SUPANCL_FORKS']).parent}/python", "my losses.py", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **forks})


def test_a_fault_in_ones_own_file_is_placed_there_and_the_advice_calls_that_file(tmp_path, forks):
    text, words = EXAMPLE.read_text(), ("pretrain", "mine.spread", "--epochs", "1", "--set", "data.limit=128")
    line = next(i for i, each in enumerate(text.splitlines(), start=1) if "anchors.std(1)" in each)
    broken = run_own(tmp_path, forks, text.replace("anchors.std(1)", "anchors.stdd(1)"), *words, "--out", "run")
    assert broken.returncode == 2
    told = " ".join(broken.stderr.split())
    assert_mentions(told, "losses.py", f"line {line}", "__call__", "AttributeError", "Tensor", "stdd")
    assert "internal error" not in told
    mended = run_own(tmp_path, forks, text, "pretrain", "--resume", "--out", "run")  # nothing has to be removed
    assert mended.returncode == 0, mended.stderr
    assert " ".join(mended.stdout.split()).endswith("evaluate it with: python 'my losses.py' evaluate knn run")


class Base:
    """A class of one's own that is registered by those made from it alone."""

    supervised = False

    def sees_batch(self, pool):
        return False

    def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
        return anchors.mean() if self.kind == "bare" else anchors.nothing


@pytest.fixture
def inherited(monkeypatch):
    """Losses whose call is that of a class above them, forgotten after the test."""
    monkeypatch.setattr(own, "REGISTERED", {})
    return {
        kind: register(
            make_dataclass(kind, [("kind", str, kind)], bases=(Base,), frozen=True, namespace={"__module__": __name__})
        )
        for kind in ("bare", "broken")
    }


def test_a_loss_is_held_to_what_it_gives_where_its_call_is_that_of_a_class_above(tmp_path, inherited):
    chosen = replace(tiny_recipe("simsiam"), loss=inherited["bare"]())
    with pytest.raises(BadInput, match=mentions("bare", "Tensor", "Terms")):
        pretrain(chosen, tiny_data(), out=tmp_path / "run")


def test_a_fault_in_ones_own_file_is_placed_where_a_study_trains_side_by_side(tmp_path, inherited):
    chosen = replace(recipe("digits.simsiam").with_set({"data.limit": 128}), loss=inherited["broken"]())
    with pytest.raises(BadInput, match=mentions("test_first_week.py", "__call__", "AttributeError", "nothing")):
        runner._train_in_worker(chosen, tmp_path / "run")
    # what says itself what is wrong stays
    with pytest.raises(BadInput, match=mentions("holds a run", "resume=True")) as told:
        pretrain(chosen, out=tmp_path / "run")
    assert own.describe_plugin_error(told.value) == ""


def test_the_package_behind_a_link_is_no_file_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "site").symlink_to(Path(errors.__file__).resolve().parent)
    linked = tmp_path / "site" / "cli" / "dispatch.py"
    for script in (linked, linked.resolve()):
        monkeypatch.setattr(errors, "_program_name", "supancl")
        monkeypatch.setattr(dispatch, "__file__", str(linked))
        monkeypatch.setattr(dispatch, "main", lambda: 0)
        monkeypatch.setattr("sys.argv", [str(script)])
        with pytest.raises(SystemExit):
            cli.entry()
        assert errors.program_name() == "supancl"


def test_a_recipe_of_ones_own_has_the_name_it_is_called_by(monkeypatch):
    monkeypatch.setitem(RECIPES, "mine.plain", lambda: recipe("digits.simsiam"))
    assert recipe("mine.plain").name == "mine.plain"
    assert isinstance(recipe("mine.plain").loss, Align)
