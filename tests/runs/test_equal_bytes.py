"""Equal weights give equal files: a checksum says whether two encoders are the same."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file

from supancl import pretrain
from supancl.files import digest
from supancl.runs.encoder_file import read_safetensors, save_safetensors
from tests.test_resume import crash_and_resume
from tests.tiny import tiny_data, tiny_recipe

SAVE = """
import sys, torch
from pathlib import Path
from supancl import EncoderSpec
from supancl.runs.encoder_file import save_encoder
from supancl.runs.writer import Writer
from supancl.files import digest
torch.manual_seed(0)
encoder, file = EncoderSpec("cnn", 1, 8, 8, (0.5,), (0.5,)).build(), Path(sys.argv[1])
for _ in range(3):
    save_encoder(file, encoder, ("cat", "Hündin"), "x")
    print(digest(file))
with Writer() as writer:
    writer.save_encoder(file, encoder, ("cat", "Hündin"), "x")
print(digest(file))
"""
ODD = 'é \u2028 \x07 \x7f "\\/ \n\t \U0001f600'
TENSORS = {
    "b": torch.arange(6.0).view(2, 3).T, "a": torch.arange(3), "none": torch.ones(0, 2), "zero": torch.ones(0),
    "half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(2.5),
}  # fmt: skip


def test_processes_with_other_hash_seeds_write_the_same_encoder(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["save", str(tmp_path / "here.safetensors")])
    exec(SAVE, {})
    here = capsys.readouterr().out.split()
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path / "there.safetensors")],
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0" if os.environ.get("PYTHONHASHSEED") != "0" else "1"},
    )
    assert len(here) == 4
    assert {*here, *done.stdout.split()} == {here[0]}


def test_a_run_that_was_interrupted_has_the_encoder_file_of_one_that_was_not(tmp_path):
    made, data = tiny_recipe("supbyol", train__checkpoint_every=2), tiny_data()
    pretrain(made, data, tmp_path / "whole")
    crash_and_resume(made, data, tmp_path / "stopped", at=8)
    assert digest(tmp_path / "whole" / "encoder.safetensors") == digest(tmp_path / "stopped" / "encoder.safetensors")


def test_a_file_is_what_safetensors_reads_in_every_way(tmp_path):
    metadata = {**{f"key {number}": str(number) for number in range(12)}, "odd": ODD, ODD: "x"}
    file = tmp_path / "x.safetensors"
    save_safetensors(file, TENSORS, metadata)
    read, told = read_safetensors(file)
    with safe_open(file, framework="numpy") as opened:
        assert opened.metadata() == told
    assert told.pop("digest")
    assert told == metadata
    for other in (read, load_file(file), load(file.read_bytes())):
        assert other.keys() == TENSORS.keys()
        assert all(
            torch.equal(other[name], value) and other[name].dtype == value.dtype for name, value in TENSORS.items()
        )


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_order_in_which_content_is_given_does_not_count(order, tmp_path):
    values = {"a": torch.ones(3), "b": torch.zeros(2)}
    save_safetensors(tmp_path / "one", values, {"a": "1", "b": "2"})
    save_safetensors(
        tmp_path / "other", {key: values[key] for key in order}, {key: {"a": "1", "b": "2"}[key] for key in order}
    )
    assert digest(tmp_path / "one") == digest(tmp_path / "other")
