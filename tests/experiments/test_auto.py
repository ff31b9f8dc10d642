"""How the rules of auto.METHOD were chosen: the plan, one run, the table in the documentation."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.auto import page, runs
from supancl.training.trainer import Trainer
from tests.files import archive, noise
from tests.tiny import tiny_data, tiny_recipe

ROOT = Path(__file__).parents[2]


def test_the_plan_names_every_cell_once_per_candidate_and_seed():
    plan = runs.plan()
    assert {cell for cell, _, _ in plan} == set(runs.CELLS)
    assert {candidate for _, candidate, _ in plan} == set(runs.CANDIDATES)
    assert ("cifar100-2000", "large-stem", 0) not in plan  # the same as the rules


def test_answers_survive_packing():
    right = torch.arange(13) % 3 == 0
    assert page.unpack({"right": runs.pack(right), "held_out": 13}).tolist() == right.tolist()


def test_fixed_norm_keeps_the_encoder_s_statistics():
    data, steps = tiny_data(), {}
    for name in ("continued", "continued-fixed-norm"):
        with runs.fixed_norm() if "fixed" in name else nullcontext():
            trainer = Trainer(tiny_recipe(), data, torch.device("cpu"))
            trainer.advance()
        steps[name] = [layer.num_batches_tracked.item() for layer in trainer.model.branches.encoder.modules()
                       if isinstance(layer, torch.nn.BatchNorm2d)]  # fmt: skip
    assert set(steps["continued"]) == {2}  # of the two views
    assert set(steps["continued-fixed-norm"]) == {0}


def test_a_run_takes_about_the_seconds_it_is_given(tmp_path, monkeypatch):
    archive(tmp_path / "x.npz", train_images=noise(80, 16, 16, 3), train_labels=np.arange(80) % 2)
    narrow = {"encoder.name": "cnn", "encoder.width": 8, "heads.projector.hidden": [16], "heads.projector.out": 16,
              "heads.predictor.hidden": [8], "train.batch_size": 16}  # fmt: skip
    monkeypatch.setitem(runs.CANDIDATES, "rules", lambda cell, data: runs.fitted(cell, data, **narrow))
    cell = runs.Cell("x.npz", "cifar100", {"data.holdout": 0.5})
    found = runs.run(cell, "rules", 0, tmp_path / "run", tmp_path, seconds=1.0)
    assert found["epochs"] * 2 * found["seconds_per_step"] == pytest.approx(1.0, rel=0.5)
    assert found["held_out"] == 40
    assert 100 * page.unpack(found).mean() == pytest.approx(found["accuracy"])


def test_the_page_holds_the_table_of_the_kept_results():
    results = page.read_results()
    text = (ROOT / "docs" / "own-data.md").read_text()
    assert page.table(results) in text
    assert page.starts_table(page.read_all()) in text
    assert page.few_table() in text
    ours, paper = (results["cifar100-2000", candidate] for candidate in ("rules", "paper"))
    gap = 100 * (page.unpack(ours).mean() - page.unpack(paper).mean())
    assert f"{gap:+.1f} [" in text
    assert not any(str(value).startswith("/") for found in page.read_all() for value in found["settings"].values())
