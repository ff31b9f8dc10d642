"""A newcomer's first week: runs do not get into each other, faults are placed."""

import os
import subprocess
from pathlib import Path

import pytest

from supancl import Interrupted, Reporter, pretrain, recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import RunFolder
from tests.helpers import assert_mentions, assert_same_bits, class_folders, final_state, supancl

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_method.py"


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
    (tmp_path / "photos").rename(tmp_path / "moved")
    said = supancl(capsys, *resume, class_folders(tmp_path / "others", ("cat", "cow"), each=8))
    assert said.code == 2
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
    resume = ("pretrain", "--resume", "--out", run.path, "--quiet", "--on-collapse", "stop")
    resume += ("--data", tmp_path / "moved")
    assert supancl(capsys, *resume).code == 0
    assert_same_bits(load_encoder(run.path).state_dict(), weights)
    after = run.read_recipe()[0]
    assert after.data.source == str(tmp_path / "moved")
    assert after.train == before.train  # how it was trained stays as it was
    assert supancl(capsys, *knn).code == 0
    written = run.encoder.stat().st_mtime_ns
    assert supancl(capsys, *resume).code == 0
    assert run.encoder.stat().st_mtime_ns == written  # a whole one is left as it is


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
    assert_mentions(told, "losses.py", f"line {line}", "AttributeError", "Tensor", "stdd")
    assert "internal error" not in told
    mended = run_own(tmp_path, forks, text, "pretrain", "--resume", "--out", "run")  # nothing has to be removed
    assert mended.returncode == 0, mended.stderr
    assert "next: python 'my losses.py' predict run" in mended.stdout
    assert "\\n" not in mended.stdout
