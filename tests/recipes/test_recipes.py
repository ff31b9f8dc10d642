"""Every recipe is whole, says where its values come from, survives JSON, and takes a step."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from supancl import METHODS, BadInput, from_arrays, pretrain, recipe
from supancl.config import flattened, to_json
from supancl.core.methods import assemble
from supancl.recipes import RECIPES, recipe_from_json
from tests.helpers import mentions

EIGHT = ("simclr", "supcon", "moco2", "supmoco", "simsiam", "supsiam", "byol", "supbyol")
EXPECTED = {
    *(f"imagenet100.{method}{suffix}" for method in EIGHT for suffix in ("", "-256")),
    "imagenet100.supcon-pool",
    "imagenet100.supcon-pool-256",
    "imagenet100.crossentropy",
    "imagenet100.crossentropy-256",
    "imagenet100.semi",
    "imagenet100.semi-256",
    *(f"vit.{method}" for method in ("moco3", "supmoco", "byol", "supbyol", "supcon", "crossentropy")),
    *(f"{data}.{method}" for data in ("cifar10", "cifar100") for method in METHODS),
    "toy.supsiam",
    *(f"digits.{method}" for method in METHODS if not method.endswith("-nopool")),
    *(f"auto.{method}" for method in (*EIGHT, "crossentropy", "semi")),
}


def test_every_setting_of_the_paper_is_there() -> None:
    assert set(RECIPES) == EXPECTED


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json_and_names_its_source(name: str) -> None:
    built = recipe(name)
    assert built.name == name
    assert built.method in METHODS
    assert recipe_from_json(json.dumps({"recipe": to_json(built)}), "x") == built
    fields = built.fields()
    assert {key.split(".")[0] for key in fields} >= {"data", "views", "encoder", "heads", "branches", "pool", "loss"}
    assert all(source for _, source in fields.values())
    assert all(any(f"{field}.".startswith(f"{key}.") for field in fields) for key in built.sources)


# values that the paper states, read from it, not from the code
PAPER = {
    "imagenet100.simclr": {"optimizer.lr": 0.1, "loss.temperature": 0.1},
    "imagenet100.supcon": {"optimizer.lr": 0.15, "loss.temperature": 0.1},
    "imagenet100.moco2": {"optimizer.lr": 0.03, "loss.temperature": 0.2, "branches.momentum": 0.999,
                          "branches.momentum_end": 0.999, "pool.size": 8192},
    "imagenet100.supmoco": {"optimizer.lr": 0.1, "loss.temperature": 0.07, "branches.momentum_end": 0.999},
    "imagenet100.byol": {"optimizer.lr": 0.2, "branches.momentum": 0.996, "branches.momentum_end": 1.0,
                         "heads.projector.out": 256},
    "imagenet100.supbyol": {"loss.alpha": 0.5, "pool.size": 8192},
    "imagenet100.simsiam": {"schedule.warmup_epochs": 40, "heads.projector.out": 2048,
                            "heads.predictor.hidden": (512,)},
    "imagenet100.supsiam": {"optimizer.weight_decay": 1e-4, "train.epochs": 200, "train.batch_size": 128},
    "vit.moco3": {"optimizer.lr": 1.5e-4, "branches.momentum": 0.99, "heads.projector.hidden": (4096, 4096)},
    "vit.supmoco": {"optimizer.lr": 1.5e-3, "branches.momentum": 0.99, "loss.temperature": 0.2, "pool.size": 8192},
    "vit.byol": {"optimizer.lr": 1.5e-3, "heads.projector.hidden": (4096,)},
    "vit.supbyol": {"branches.momentum": 0.996, "optimizer.weight_decay": 0.1, "schedule.warmup_epochs": 40,
                    "train.batch_size": 256},
    "cifar100.simclr": {"optimizer.lr": 0.7},
    "cifar100.supcon": {"optimizer.lr": 0.6},
    "cifar100.byol": {"optimizer.lr": 0.6},
    "cifar100.supbyol": {"optimizer.lr": 0.5, "loss.alpha": 0.8},
    "cifar100.simsiam": {"optimizer.lr": 0.7},
    "cifar100.supsiam": {"optimizer.lr": 0.7, "loss.alpha": 0.5, "pool.size": 4096, "views.blur": 0.0,
                         "train.epochs": 1000, "train.batch_size": 256},
    "toy.supsiam": {"optimizer.lr": 0.05, "optimizer.weight_decay": 5e-4, "views.share": 0.6, "train.epochs": 200,
                    "encoder.size": 2048},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER)
def test_values_are_the_papers(name: str) -> None:
    fields = recipe(name).fields()
    assert {field: fields[field][0] for field in PAPER[name]} == PAPER[name]


@pytest.mark.parametrize("name", RECIPES)
def test_the_paper_is_the_source_of_what_it_states_alone(name: str) -> None:
    fields = recipe(name).fields()
    cited = {key for key, (_, source) in fields.items() if source.startswith(("App.", "Sec.", "Eq", "Table"))}
    ours = {"data.cache", "views.local", "encoder.width", "pool.rate", "pool.sharded", "optimizer.encoder_lr_scale",
            "schedule.granularity", "schedule.restart_epoch", "schedule.restart_rate"}  # fmt: skip
    unused = {"branches.momentum"} if fields["branches.target"][0] != "momentum" else set()
    assert not cited & (ours | unused)
    in_table_f3 = name.endswith("-256") and name.partition(".")[2].startswith(("supcon", "supsiam"))
    assert (
        ("App. F.3" in fields["train.batch_size"][1]) == in_table_f3 == (recipe(name).paper == "App. F.3 (Table F.3)")
    )


@pytest.mark.parametrize(("name", "rate"), [("imagenet100.supcon-256", 0.3), ("imagenet100.supsiam-256", 0.4)])
def test_batch_256_scales_the_rate_as_app_f3_says(name: str, rate: float) -> None:
    assert recipe(name).train.batch_size == 256
    assert recipe(name).learning_rate == pytest.approx(rate)


def test_the_released_code_is_a_named_option() -> None:
    built = recipe("imagenet100.supbyol", compat="released-code")
    assert built.compat == "released-code"
    paper, code = (flattened(replace(each, sources={})) for each in (recipe("imagenet100.supbyol"), built))
    assert {key: value for key, value in code.items() if paper[key] != value} == {
        "compat": "released-code",
        "schedule.granularity": "epoch",
        "heads.projector.bias": "none",
        "branches.momentum_end": 0.996,
    }


def test_an_override_is_checked_and_noted() -> None:
    built = recipe("cifar100.supsiam").with_set({"loss.alpha": 0.3}, because="--set loss.alpha=0.3")
    assert built.fields()["loss.alpha"] == (0.3, "--set loss.alpha=0.3")
    with pytest.raises(BadInput, match=mentions("loss.alpha", "1.3", "[0, 1]")):
        built.with_set({"loss.alpha": 1.3})


def test_every_encoder_gives_features_of_its_width_at_the_size_of_its_recipe() -> None:
    for spec in {recipe(name).encoder for name in RECIPES}:
        with torch.device("meta"):  # which has shapes but no numbers
            encoder = spec.build()
            image = (spec.size,) if spec.name == "linear" else (spec.channels, spec.size, spec.size)
            assert encoder(torch.empty(2, *image)).shape == (2, encoder.width), spec


@pytest.mark.parametrize("name", RECIPES)
def test_the_parts_of_a_recipe_fit_together_at_full_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the recipe is changed, from the features that the test above checks to the gradients of the heads."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # it knows no meta device
    built, classes = recipe(name), 100
    with torch.device("meta"):
        branches, pool = assemble(built.encoder, built.heads, built.branches, built.pool, built.loss, classes)
        features = torch.empty(2, built.train.batch_size, branches.encoder.width)
        labels = torch.zeros(built.train.batch_size, dtype=torch.long)
    branches.encoder = torch.nn.Identity()
    if branches.target_encoder is not None:
        branches.target_encoder = torch.nn.Identity()
    anchors, targets = branches(features)
    assert anchors.shape == targets.shape == (2, built.train.batch_size, built.heads.projector.out or classes)
    terms = built.loss(anchors, targets, labels, pool)
    assert [tuple(term.shape) for term in terms] == [(), (), ()]
    terms.total.backward()
    assert all(p.grad is not None for p in branches.parameters() if p.requires_grad)
    branches.update_target(0.9)
    if pool is not None:
        pool.push(targets[-1].detach(), labels)
        assert pool.stored().targets.shape == (built.pool.size, targets.shape[-1])


# one recipe of each encoder, with all parts that there are: a pool, a predictor and a momentum copy
FULL_WIDTH = {
    "imagenet100.supbyol": 32, "vit.supbyol": 32, "cifar100.supbyol": 16, "auto.supbyol": 32
}  # fmt: skip


@pytest.mark.parametrize("name", [*FULL_WIDTH, *(name for name in RECIPES if name.startswith(("digits.", "toy.")))])
def test_a_recipe_takes_one_step(name: str, tmp_path: Path) -> None:
    few = {"train.epochs": 1, "train.batch_size": 4, "train.device": "cpu", "train.monitor_every": 0, "pool.size": 64}
    built, data = recipe(name).with_set(few), None
    if name in FULL_WIDTH:
        built = built.with_set({"views.size": FULL_WIDTH[name]})
        pixels = np.random.default_rng(0).integers(0, 256, (5, 40, 40, 3), dtype=np.uint8)
        data = from_arrays(pixels, np.array([0, 1, 0, 1, 1]), pixels[:1], np.array([0]))
    run = pretrain(built if data else built.with_set({"data.limit": 4}), data, tmp_path / "run")
    assert [row["step"] for row in run.metrics] == [1]
    assert np.isfinite(run.metrics[0]["loss"])
