"""A number of a table is of the encoder that the run has now, not of one that it had on the way."""

from __future__ import annotations

from pathlib import Path

import torch

from supancl.paper.layouts import LAYOUTS
from supancl.paper.pivot import FilledTable, fill
from supancl.paper.results import read_entries
from supancl.runs.encoder_file import load_encoder, save_encoder
from tests.files import TINY, class_folders, supancl


def table_of(run: Path) -> FilledTable:
    return fill(LAYOUTS["1"], read_entries([str(run)]))


def linear_in(filled: FilledTable) -> list[float]:
    return [line.ours["linear"].mean for line in filled.lines if "linear" in line.ours]


def test_what_was_measured_before_the_run_was_trained_further_is_in_no_table(tmp_path: Path, capsys) -> None:
    data, run = class_folders(tmp_path / "data", each=20), tmp_path / "run"
    for command in (("pretrain", "digits.supsiam", *TINY, "--data", data, "--out", run), ("evaluate", "linear", run)):
        said = supancl(capsys, *command)
        assert said.code == 0, said.err
    before = table_of(run)
    assert len(linear_in(before)) == 1
    encoder = load_encoder(run)
    with torch.no_grad():
        next(encoder.parameters()).mul_(1.5)
    save_encoder(run / "encoder.safetensors", encoder, ("cat", "dog"), "digits.supsiam")
    after = table_of(run)
    assert linear_in(after) == []
    (run / "encoder.safetensors").unlink()  # evaluations travel without their encoder
    assert linear_in(table_of(run)) == linear_in(before)
