"""`compat="released-code"`: what the authors' code does, and that a run with it can stop and go on."""

import json

import pytest
import torch
from torch import Tensor, nn

from supancl import METHODS, PoolSpec, pretrain, recipe
from supancl.config import to_json
from supancl.core.branches import HeadSpec
from supancl.core.pools import UNLABELLED, Queue
from supancl.paper.layouts import is_published
from supancl.recipes import RECIPES, as_released_code, recipe_from_json
from supancl.training.trainer import Trainer
from tests.helpers import assert_same_bits, final_state, tiny_data, tiny_recipe
from tests.test_resume import crash_and_resume

WIDTH = 2048  # of a ResNet-50's features

# the released code's heads for a ResNet-50, layer by layer: (in, out, bias) is a linear layer, (width, affine) a norm
CONTRAST = [(WIDTH, WIDTH, False), (WIDTH, True), "relu", (WIDTH, 128, True)]
BYOL = [(WIDTH, 4096, False), (4096, True), "relu", (4096, 256, False)]
BYOL_PREDICTOR = [(256, 4096, False), (4096, True), "relu", (4096, 256, True)]
SIAM = [
    (WIDTH, 2048, False),
    (2048, True),
    "relu",
    (2048, 2048, False),
    (2048, True),
    "relu",
    (2048, 2048, False),
    (2048, False),
]
SIAM_PREDICTOR = [(2048, 512, False), (512, True), "relu", (512, 2048, True)]
HEADS = {
    "simclr": (CONTRAST, None), "supcon": (CONTRAST, None), "moco2": (CONTRAST, None), "supmoco": (CONTRAST, None),
    "byol": (BYOL, BYOL_PREDICTOR), "supbyol": (BYOL, BYOL_PREDICTOR),
    "simsiam": (SIAM, SIAM_PREDICTOR), "supsiam": (SIAM, SIAM_PREDICTOR),
}  # fmt: skip


def layers(head: nn.Sequential) -> list:
    found: list = []
    for layer in head:
        if isinstance(layer, nn.Linear):
            found.append((layer.in_features, layer.out_features, layer.bias is not None))
        elif isinstance(layer, nn.BatchNorm1d):
            found.append((layer.num_features, layer.affine))
        else:
            assert isinstance(layer, nn.ReLU)
            found.append("relu")
    return found


def built(heads: HeadSpec, width: int) -> tuple[list, list | None]:
    assert heads.projector.out is not None
    predictor = None if heads.predictor is None else layers(heads.predictor.build(heads.projector.out))
    return layers(heads.projector.build(width)), predictor


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("suffix", ["", "-256"])
def test_heads_are_the_released_codes_layer_by_layer(method, suffix):
    made = recipe(f"imagenet100.{method}{suffix}", compat="released-code")
    assert built(made.heads, WIDTH) == HEADS[method]
    projector = layers(made.with_set({"encoder.name": "resnet18"}).heads.projector.build(512))
    if METHODS[method].loss.kind == "contrast":
        assert projector == [(512, 512, False), (512, True), "relu", (512, 128, True)]


@pytest.mark.parametrize("method", HEADS)
def test_the_papers_heads_say_what_is_the_released_codes_and_what_is_ours(method):
    paper, code = (recipe(f"imagenet100.{method}", compat=compat).fields() for compat in ("paper", "released-code"))
    for field, (value, source) in paper.items():
        if field.rpartition(".")[2] in ("norm", "last_norm", "bias"):
            same = code[field][0] == value
            # a bias that stands wherever no norm follows is another one where the norm is
            same &= not (field.endswith("projector.bias") and METHODS[method].loss.kind == "contrast")
            assert source.startswith("as in the released code" if same else "our choice"), field
            assert "released code" in code[field][1], field


def test_paper_mode_has_the_heads_it_had():
    projector, _ = built(recipe("imagenet100.moco2").heads, WIDTH)
    assert projector == [(WIDTH, 2048, True), "relu", (2048, 128, True)]
    projector, predictor = built(recipe("imagenet100.byol").heads, WIDTH)
    assert projector == [*BYOL[:-1], (4096, 256, True)]
    assert predictor == BYOL_PREDICTOR
    assert built(recipe("imagenet100.supsiam").heads, WIDTH) == HEADS["supsiam"]


@pytest.mark.parametrize("method", ["byol", "supbyol"])
def test_byols_momentum_never_leaves_its_start(method):
    made = recipe(f"imagenet100.{method}", compat="released-code")
    assert (made.branches.momentum, made.branches.momentum_end) == (0.996, 0.996)
    trainer = trainer_of(as_released_code(tiny_recipe(method, branches__momentum=0.996)))
    assert {trainer.inputs.schedule.momentum(step) for step in range(trainer.steps + 1)} == {0.996}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_released_form_that_survives_json(name):
    made = recipe(name, compat="released-code")
    assert recipe_from_json(json.dumps({"recipe": to_json(made)}), "x") == made
    assert (made.pool.start == "random") == (made.method in ("moco2", "supmoco"))
    assert is_published(made)


def trainer_of(made) -> Trainer:
    return Trainer(made, tiny_data(unlabelled=0.3), torch.device("cpu"))


def queue_of(seed: int, method: str = "moco2") -> Tensor:
    pool = trainer_of(as_released_code(tiny_recipe(method, train__seed=seed))).model.pool
    assert isinstance(pool, Queue)
    stored = pool.stored()
    assert bool(stored.valid.all())
    assert set(stored.labels.tolist()) == {UNLABELLED}
    assert int(pool.counts.sum()) == 0
    torch.testing.assert_close(stored.targets.norm(dim=1), torch.ones(20))
    return stored.targets


def test_a_random_queue_is_full_of_unit_vectors_that_hang_on_the_seed():
    assert torch.equal(queue_of(3), queue_of(3))
    assert torch.equal(queue_of(3, "supmoco"), queue_of(3))
    assert not torch.equal(queue_of(3), queue_of(4))


@pytest.mark.parametrize("method", ["moco2", "supmoco", "byol", "supcon"])
def test_a_run_resumes_with_the_same_bits(method, tmp_path):
    made, data = as_released_code(tiny_recipe(method, train__checkpoint_every=2)), tiny_data(unlabelled=0.3)
    whole = pretrain(made, data, tmp_path / "whole")
    resumed = crash_and_resume(made, data, tmp_path / "stopped", at=8)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))
    assert [row["loss"] for row in whole.metrics if row["kind"] == "train"] == [
        row["loss"] for row in resumed.metrics if row["kind"] == "train"
    ]
    if method == "moco2":  # an empty queue has no negatives: the first loss would be 0
        assert whole.metrics[0]["loss"] > 1


def test_random_targets_go_as_the_queue_fills():
    pool = PoolSpec("queue", 6, start="random").build(4, classes=3, unlabelled=True)
    assert isinstance(pool, Queue)
    before = pool.stored().targets.clone()
    targets = nn.functional.normalize(torch.randn(4, 4), dim=1)
    pool.push(targets, torch.tensor([0, 1, 1, -1]))
    after = pool.stored()
    assert torch.equal(after.targets, torch.cat([targets, before[4:]]))
    assert after.labels.tolist() == [0, 1, 1, -1, -1, -1]
    assert pool.counts.tolist() == [1, 2, 0]
    mean = pool.class_mean(torch.tensor([1, 2]), torch.zeros(2, 4))
    torch.testing.assert_close(mean, torch.stack([targets[1:3].mean(0), torch.zeros(4)]))
