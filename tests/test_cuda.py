"""On a GPU: the same losses as on the CPU, bf16 and compilation near them, and the same bits after a resume."""

import copy
import math
import os
import pickle
import statistics
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from supancl import METHODS, Data, ImageEncoder, NonFinite, embed, load_encoder, open_data, pretrain, recipe
from supancl.core.encoders import EncoderSpec
from supancl.core.pools import PoolSpec
from supancl.data.splits import full_split
from supancl.data.store.memory import ArrayImages, Batch, PackedImages
from supancl.data.views.augment import Draws, render_in_chunks
from supancl.data.views.render import render
from supancl.data.views.specs import Crops
from supancl.runs.folder import RunFolder
from supancl.training.pretraining import capture_step
from supancl.training.speed import WARM_UP_STEPS, optimize_for_cuda
from supancl.training.trainer import Trainer
from tests.core.test_label_weights import some_pairs
from tests.helpers import Notes, assert_same_bits, draw, final_state, noise, tiny_data, tiny_recipe
from tests.steps import advance, side_by_side, without_tf32
from tests.test_resume import crash_and_resume

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

CASES = [
    (m, p)
    for m, row in METHODS.items()
    for p in ([None] if row.pool.kind == "none" else ["queue", "class-queues", "prototypes"])
]


@pytest.fixture
def same_views(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Views drawn on the CPU from the pixels themselves, so that both devices see the same ones; no tf32."""
    original = Crops.__call__

    def drawn(self, batch, mean, std, generator, views=2, renderer=None, dtype=torch.float32, row_range=None):
        seed = torch.Generator().manual_seed(int(batch.pixels.sum()))
        return original(self, Batch(batch.pixels.cpu()), mean, std, seed, views).to(batch.pixels.device)

    monkeypatch.setattr(Crops, "__call__", drawn)
    with without_tf32():
        yield


@pytest.mark.parametrize(("method", "pool"), CASES)
def test_five_steps_give_the_losses_of_the_cpu(method: str, pool: str | None, same_views) -> None:
    losses, weights = {}, {}
    for device in ("cpu", "cuda"):
        made = Trainer(tiny_recipe(method, pool, train__device=device), tiny_data(unlabelled=0.2), torch.device(device))
        weights = weights or {name: value.clone() for name, value in made.model.branches.state_dict().items()}
        made.model.branches.load_state_dict(weights)
        losses[device] = []
        for _ in range(5):
            made.advance()
            losses[device].append(made.inputs.drain_log(torch.empty(0)).loss)
    # not more steps: batch norm over eight images enlarges what rounding begins (moco3: 1e-3 after eight)
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("settings", [{"train.precision": "bf16"}, {"train.precision": "bf16", "train.compile": True}])
def test_bf16_and_compilation_train_as_well(settings: dict, tmp_path: Path) -> None:
    reference = {"train.precision": "fp32", "train.compile": False, "train.replay": False}
    base = recipe("digits.supbyol").with_set({"train.epochs": 2, "train.device": "cuda", **reference})
    plain, notes = pretrain(base, out=tmp_path / "plain").metrics, Notes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an error out of the compiler's own warnings would end compiling
        fast = pretrain(base.with_set(settings), out=tmp_path / "fast", reporter=notes).metrics
    assert not [said for said in notes.warnings if "compiled" in said]  # it would go on as written
    assert fast[-2]["loss"] == pytest.approx(plain[-2]["loss"], abs=0.02)
    assert abs(fast[-1]["knn"] - plain[-1]["knn"]) < 6


@pytest.mark.parametrize("method", ["supsiam", "supbyol", "supmoco"])
def test_a_deterministic_run_resumes_with_the_same_bits(method: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings = {"train__device": "cuda", "train__checkpoint_every": 2, "train__deterministic": True}
    made, data = tiny_recipe(method, **settings), tiny_data()
    pretrain(made, data, tmp_path / "whole")
    crash_and_resume(made, data, tmp_path / "stopped", at=8)
    assert_same_bits(final_state(tmp_path / "whole"), final_state(tmp_path / "stopped"))


# --- the captured step ------------------------------------------------------------------------------------------------


def digits_trainer(method: str = "supsiam", **settings: object) -> Trainer:
    chosen = tiny_recipe(method).with_set(
        {
            "train.device": "cuda",
            "train.epochs": 8,
            "train.batch_size": 64,
            "optimizer.reference_batch": 64,
            "train.precision": "fp32",
            "train.compile": False,
            "train.replay": False,
            "views.size": 16,
            "data.source": "digits",
            "data.labelled": 0.3 if method == "semi" else 1.0,
            **settings,
        }
    )
    return Trainer(chosen, open_data(chosen.data, chosen.encoder.channels), torch.device("cuda"))


def losses_of(trainer: Trainer, steps: int) -> list[float]:
    return [advance(trainer) for _ in range(steps)]


FAST = {
    "replayed": {"train.replay": True},
    "compiled": {"train.compile": True},
    "compiled and replayed": {"train.compile": True, "train.replay": True},
}
METHODS_REPLAYED = ("supsiam", "semi", "supbyol", "supcon", "supmoco", "moco2", "crossentropy")
WAYS = [(method, "replayed", precision) for method in METHODS_REPLAYED for precision in ("fp32", "bf16")]
WAYS += [("supsiam", "compiled", "bf16"), ("supsiam", "compiled and replayed", "bf16")]  # half a minute each


@pytest.mark.parametrize(("method", "way", "precision"), WAYS)
def test_fifty_steps_are_those_of_the_eager_step(method: str, way: str, precision: str) -> None:
    kind = {"train.precision": precision}
    trainer = digits_trainer(method, **kind, **FAST[way])
    eager, fast, apart = side_by_side(digits_trainer(method, **kind), trainer, 50)
    assert (trainer.captured.replay is not None) == ("replayed" in way)
    close = 1e-3 if precision == "fp32" else 5e-3
    assert fast == pytest.approx(eager, rel=close, abs=close)
    # a learning rate that is off by 1% is 0.01 apart; on a CPU the medians of bf16 against fp32 are at most 0.025
    limit = 0.05 if "compiled" in way else 0.02 if precision == "bf16" else 0.005
    assert {name: statistics.median(shares) for name, shares in apart.items()} == pytest.approx(
        dict.fromkeys(apart, 0.0), abs=limit
    )
    assert abs(eager[-1] - eager[0]) > 0.1  # it does learn
    # and by themselves, for as long as rounding has not grown: after 20 steps two runs part (docs/log.md)
    slow = {**kind, "optimizer.lr": 0.005}
    alone = losses_of(digits_trainer(method, **slow), 15)
    assert losses_of(digits_trainer(method, **slow, **FAST[way]), 15) == pytest.approx(
        alone, rel=1e-2, abs=2e-2 if precision == "bf16" else 5e-3
    )


def test_rates_momentum_and_draws_advance_from_replay_to_replay() -> None:
    trainer = digits_trainer("supbyol", **{"train.replay": True})
    losses_of(trainer, 5)
    assert trainer.captured.replay is not None
    for _ in range(30):
        trainer.advance()
        last = trainer.step - 1
        assert float(trainer.model.optimizer.param_groups[0]["lr"]) == pytest.approx(
            trainer.inputs.schedule.rates[0](last), rel=1e-6
        )
        assert float(trainer.inputs.momentum) == pytest.approx(trainer.inputs.schedule.momentum(last), rel=1e-9)
    still = digits_trainer("simsiam", **{"train.replay": True, "optimizer.lr": 1e-9})
    seen = losses_of(still, 12)[4:]
    assert len(set(seen)) == len(seen)  # the weights stand still: what differs is the images and their views


def test_a_step_that_cannot_be_recorded_goes_on_and_can_be_recorded_later() -> None:
    trainer, notes = digits_trainer("supsiam", **{"train.replay": True, "loss.samples": 2}), Notes()
    for _ in range(WARM_UP_STEPS):
        trainer.advance()
    step, stream = trainer.captured.step, torch.cuda.current_stream()
    push = step.push
    step.push = lambda *what: (float(trainer.inputs.momentum), push(*what))  # nobody may look while a step is recorded
    capture_step(trainer, notes)
    step.push = push
    assert len(notes.warnings) == 1
    assert "could not be captured as a CUDA graph" in notes.warnings[0]
    assert trainer.captured.replay is None
    assert torch.cuda.current_stream() == stream
    losses = losses_of(trainer, 6)  # draws of the views' generator, and of torch's own
    assert all(math.isfinite(loss) for loss in losses)
    assert trainer.step == int(trainer.inputs.step_tensor) == WARM_UP_STEPS + 6
    trainer.capture()
    assert all(math.isfinite(loss) for loss in losses_of(trainer, 3))
    assert trainer.captured.replay is not None
    assert trainer.step == int(trainer.inputs.step_tensor) == WARM_UP_STEPS + 9


@pytest.mark.parametrize("settings", [{"train.replay": True}, {}])
def test_a_step_does_not_wait_for_the_device(settings: dict) -> None:
    trainer = digits_trainer("supbyol", **settings)
    losses_of(trainer, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                trainer.advance()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert trainer.step == 11


@pytest.mark.parametrize("packed", [True, False])
def test_images_that_are_not_resident_are_replayed_too(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    random = torch.Generator().manual_seed(0)
    sides = [(8 + i % 3, 8 + i % 5) if packed else (8, 8) for i in range(96)]
    images = [torch.randint(0, 256, (1, *side), generator=random, dtype=torch.uint8) for side in sides]
    labels = torch.arange(96) % 3
    store = PackedImages.from_images(images) if packed else ArrayImages(torch.stack(images))
    split = full_split(store, labels, [str(i) for i in range(96)])
    data = Data(split, split, ("a", "b", "c"))

    def made(resident: bool, replay: bool) -> Trainer:
        monkeypatch.setattr("supancl.data.store.memory.fits_on", lambda device, nbytes: resident)
        chosen = tiny_recipe(train__device="cuda", train__precision="fp32", train__replay=replay, train__epochs=4)
        trainer = Trainer(chosen, data, torch.device("cuda"))
        assert trainer.feed.is_resident == resident
        return trainer

    for resident, replay in ((True, True), (False, True), (False, False)):
        with without_tf32():
            first, other, apart = side_by_side(made(True, False), made(resident, replay), 20)
        assert other == pytest.approx(first, rel=1e-3, abs=1e-3)
        medians = {name: statistics.median(shares) for name, shares in apart.items()}
        assert medians == pytest.approx(dict.fromkeys(apart, 0.0), abs=0.005)


def test_a_run_with_replay_stops_resumes_and_names_its_bad_step(tmp_path: Path) -> None:
    made = recipe("digits.supsiam").with_set({"train.device": "cuda", "train.epochs": 3, "train.checkpoint_every": 7})
    whole_run = pretrain(made, out=tmp_path / "whole").metrics
    crash_and_resume(made, None, tmp_path / "stopped", at=15)
    stopped = RunFolder(tmp_path / "stopped").metrics()
    assert [row["step"] for row in stopped] == [row["step"] for row in whole_run]
    assert stopped[-2]["loss"] == pytest.approx(whole_run[-2]["loss"], abs=0.05)
    assert whole_run[-1]["knn"] > 80
    with pytest.raises(NonFinite, match=r"at step \d+ \(images"):
        pretrain(made.with_set({"optimizer.lr": 1e6, "schedule.warmup_epochs": 0}), out=tmp_path / "bad")


def test_views_in_half_precision_are_those_of_the_cpu_to_half_a_grey_level() -> None:
    crops = Crops(size=64, blur=(1.0, 0.1))
    pixels = torch.randint(0, 256, (16, 3, 80, 96), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    draws = draw(crops, 32, torch.tensor([[80, 96]] * 32), torch.Generator().manual_seed(2), 2)
    expected = render_in_chunks(crops, pixels, draws, (0.0,), (1.0,))
    moved = Draws._make(None if drawn is None else drawn.cuda() for drawn in draws)
    for make in (render, torch.compile(render)):
        made = make(crops, pixels.cuda(), moved, (0.0,), (1.0,), torch.bfloat16)
        assert made.is_contiguous(memory_format=torch.channels_last)
        difference = (made.cpu().float() - expected).abs()
        assert float((difference - expected / 256).max()) < 0.5 / 255  # beside bfloat16's own rounding
        assert float(difference.mean()) < 0.3 / 255


@pytest.mark.parametrize("several", [False, True], ids=["one label", "three labels"])
@pytest.mark.parametrize("kind", ["queue", "class-queues", "prototypes"])
def test_a_compiled_push_is_the_push_as_written_and_waits_for_nothing(kind: str, several: bool) -> None:
    plain, compiled = (PoolSpec(kind, 16).build(64, 5, pairs=3 * several).cuda() for _ in range(2))
    push, random = torch.compile(compiled.push), torch.Generator().manual_seed(0)

    def labels_of(number: int) -> torch.Tensor:
        return some_pairs(12, number, 5) if several else torch.randint(-1, 5, (12,), generator=random)

    batches = [(torch.randn(12, 64, generator=random).cuda(), labels_of(number).cuda()) for number in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (targets, labels) in enumerate(batches):
            torch.cuda.set_sync_debug_mode("error" if number > 2 else "default")
            try:
                plain.push(targets, labels)
                push(targets, labels)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    held = len(plain.stored().valid)  # a ring has a slot more, for rows that are not stored: any of them may end there
    for name, value in plain.state_dict().items():
        mine = compiled.state_dict()[name]
        if name in ("targets", "labels", "weights", "born"):
            mine, value = mine[:held], value[:held]
        torch.testing.assert_close(mine, value, rtol=1e-5, atol=1e-6, msg=name)
    labels = some_pairs(6, 9, 5).cuda() if several else torch.arange(-1, 5, device="cuda")
    fallback = torch.zeros(2, 6, 64, device="cuda")
    torch.testing.assert_close(compiled.class_mean(labels, fallback), plain.class_mean(labels, fallback))


def test_arranged_layers_compiled_are_the_plain_ones() -> None:
    torch.manual_seed(0)
    plain_one = EncoderSpec("resnet18", size=64).build().cuda().to(memory_format=torch.channels_last)
    arranged = copy.deepcopy(plain_one)
    optimize_for_cuda(arranged)
    images = torch.randn(8, 3, 64, 64, device="cuda")
    found = {}
    with without_tf32(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler itself makes what torch then calls deprecated
        for name, encoder in (("plain", plain_one), ("arranged", torch.compile(arranged))):
            made = encoder(images)
            made.square().sum().backward()
            found[name] = made.detach()
    torch.testing.assert_close(found["arranged"], found["plain"], rtol=1e-3, atol=1e-3)
    for (name, one), other in zip(plain_one.named_parameters(), arranged.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        apart = (one.grad - other.grad).norm() / one.grad.norm().clamp(min=1e-6)
        assert float(apart) < 2e-2, name


def test_calls_from_python_use_the_gpu_and_give_features_on_the_cpu(tmp_path: Path) -> None:
    images, labels = noise(32, 8, 8), torch.arange(32).numpy() % 2
    run = pretrain(tiny_recipe(train__device="cuda"), tiny_data(), tmp_path / "run")
    features = embed(run, images).values
    assert features.device.type == "cpu"
    assert torch.allclose(features, embed(load_encoder(run.folder), images).values, atol=1e-2)
    settings = {"device": "cuda", "encoder.name": "cnn", "views.size": 8, "batch_size": 8}
    estimator = ImageEncoder(epochs=1, settings=settings).fit(images, labels)
    copied = pickle.loads(pickle.dumps(estimator))
    assert next(estimator.encoder_.parameters()).is_cuda
    assert not next(copied.encoder_.parameters()).is_cuda
    assert numpy.allclose(estimator.transform(images), copied.transform(images), atol=1e-2)
