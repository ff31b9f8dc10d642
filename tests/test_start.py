"""What is chosen by itself, and what is said where the fast way cannot be gone."""

from pathlib import Path

import pytest
import torch

from supancl import BadInput, Data, pretrain, recipe
from supancl.capture import compiled_or_plain
from supancl.data.images import PackedImages
from supancl.data.sources import whole
from supancl.run import RunFolder
from supancl.start import WORTH_COMPILING, agrees, determinism, with_speed
from supancl.train import _advanced, _capture
from supancl.trainer import WARM_UP, Trainer
from tests.tiny import Notes, tiny_data, tiny_recipe

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """A GPU to ask about, with bf16 or without."""

    def present(bf16: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")

    return present


def chosen(made, device: torch.device, images: int) -> tuple:
    train = with_speed(made, device, images).train
    return train.precision, train.compile, train.replay


def test_a_cpu_gets_the_plain_step() -> None:
    assert chosen(recipe("cifar100.supsiam"), CPU, 50_000) == ("fp32", False, False)


def test_a_gpu_gets_the_fast_one_and_compiles_where_the_run_is_long_enough(gpu) -> None:
    gpu(bf16=True)
    made = recipe("cifar100.supsiam")
    long_enough = made.with_set({"train.epochs": -(-WORTH_COMPILING // 195)})
    assert chosen(long_enough, CUDA, 50_000) == ("bf16", True, True)
    assert chosen(made.with_set({"train.epochs": 2}), CUDA, 50_000) == ("bf16", False, True)
    assert chosen(long_enough.with_set({"train.deterministic": True}), CUDA, 50_000) == ("bf16", False, False)
    assert chosen(made.with_set({"train.epochs": 2, "train.on_nan": "skip"}), CUDA, 50_000) == ("bf16", False, False)


def test_what_is_asked_for_is_kept_and_the_choice_has_a_source(gpu) -> None:
    gpu(bf16=True)
    made = recipe("cifar100.supsiam").with_set({"train.precision": "fp32", "train.compile": False})
    fast = with_speed(made, CUDA, 50_000)
    assert (fast.train.precision, fast.train.compile, fast.train.replay) == ("fp32", False, True)
    assert fast.fields()["train.replay"] == (True, "by itself, on cuda")


def test_a_gpu_without_bf16_trains_in_fp32_or_says_so(gpu) -> None:
    gpu(bf16=False)
    assert chosen(recipe("cifar100.supsiam"), CUDA, 50_000)[0] == "fp32"
    with pytest.raises(BadInput, match="--precision bf16: an old GPU has no bf16; take --precision fp32"):
        with_speed(recipe("cifar100.supsiam").with_set({"train.precision": "bf16"}), CUDA, 50_000)


def test_a_run_keeps_what_was_chosen_and_continues_when_it_is_left_open_again(tmp_path: Path) -> None:
    made, data = tiny_recipe(), tiny_data()
    pretrain(made, data, tmp_path / "run")
    kept = RunFolder(tmp_path / "run").read_recipe()[0].train
    assert (made.train.precision, kept.precision, kept.compile, kept.replay) == ("auto", "fp32", False, False)
    pretrain(made, data, tmp_path / "run", resume=True)
    with pytest.raises(BadInput, match=r"train\.precision = 'bf16' differs from 'fp32'"):
        pretrain(made.with_set({"train.precision": "bf16"}), data, tmp_path / "run", resume=True)
    assert agrees("train.compile", None, True)
    assert not agrees("train.epochs", None, 3)


def test_a_capture_that_fails_is_said_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, notes = Trainer(tiny_recipe(), tiny_data(), CPU), Notes()

    def fails() -> None:
        raise RuntimeError("operation not permitted when stream is capturing. More of it")

    trainer.warmed = WARM_UP
    monkeypatch.setattr(trainer, "capture", fails)
    _capture(trainer, notes)
    said = "the step could not be captured as a CUDA graph (operation not permitted when stream is capturing)"
    assert notes.warnings[0].startswith(said)
    assert "train.replay=false" in notes.warnings[0]
    assert trainer.replay is None
    assert trainer.warmed != WARM_UP  # it is not tried at every step
    assert trainer.advance() is not None


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        ({}, "--accumulate 2 or --batch-size 4"),
        ({"train.accumulate": 4}, "--batch-size 4"),
        ({"train.batch_size": 2}, r"smaller views \(--set views.size\) or a smaller encoder"),
    ],
)
def test_too_little_memory_says_what_to_lower(settings, ways, monkeypatch, tmp_path: Path) -> None:
    def full(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(Trainer, "advance", full)
    with pytest.raises(BadInput, match=f"memory is too small for batches of [28]; try {ways}$"):
        pretrain(tiny_recipe().with_set(settings), tiny_data(), tmp_path / "run")


def test_a_compiler_that_fails_is_said_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuses(module):
        def forward(*args):
            raise torch._dynamo.exc.BackendCompilerFailed(compile, RuntimeError("no C compiler"), None)

        return forward

    plain = pretrain(tiny_recipe(train__compile=False), tiny_data(), tmp_path / "plain")
    monkeypatch.setattr(torch, "compile", refuses)
    notes = Notes()
    run = pretrain(tiny_recipe(train__compile=True), tiny_data(), tmp_path / "run", reporter=notes)
    assert len(notes.warnings) == 1
    assert "could not be compiled" in notes.warnings[0]
    assert len(run.metrics) == len(plain.metrics)


def test_other_errors_of_a_compiled_step_are_not_taken_for_the_compilers(monkeypatch, tmp_path: Path) -> None:
    def breaks(module):
        def forward(*args):
            raise ValueError("a fault of ours")

        return forward

    monkeypatch.setattr(torch, "compile", breaks)
    with pytest.raises(ValueError, match="a fault of ours"):
        pretrain(tiny_recipe(train__compile=True), tiny_data(), tmp_path / "run")


def test_a_compiler_that_fails_at_the_pool_has_the_step_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, notes, taken = Trainer(tiny_recipe(), tiny_data(), CPU), Notes(), []

    def fails(targets, labels):
        raise torch._dynamo.exc.BackendCompilerFailed(compile, RuntimeError("no C compiler"), None)

    step = trainer.optimizer.step
    monkeypatch.setattr(trainer.optimizer, "step", lambda: taken.append(step()))
    monkeypatch.setattr(torch, "compile", lambda function: fails)
    trainer.compiled, trainer.push = True, compiled_or_plain(trainer.pushed, trainer.unsaid.append)
    for _ in range(2):
        assert _advanced(trainer, notes) is not None
    assert (len(taken), trainer.step, int(trainer.at), int(trainer.pool.clock)) == (2, 2, 2, 2)
    assert len(notes.warnings) == 1  # though it failed at both steps' push
    assert "filling the pool could not be compiled" in notes.warnings[0]
    assert "no C compiler" in notes.warnings[0]


def test_while_a_step_is_recorded_no_thread_makes_batches_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (1, 8 + i % 2, 8), generator=random, dtype=torch.uint8) for i in range(48)]
    split = whole(PackedImages.of(images), torch.arange(48) % 3, [str(i) for i in range(48)])
    trainer = Trainer(tiny_recipe(), Data(split, split, ("a", "b", "c")), CPU)
    trainer.advance()
    assert trainer.feed.thread is not None
    threads, seen = trainer.feed.thread._threads, []
    monkeypatch.setattr("supancl.trainer.Replay", lambda *how: seen.append([each.is_alive() for each in threads]))
    trainer.capture()
    assert len(seen) == 1
    assert seen[0]
    assert not any(seen[0])
    assert trainer.advance() is not None  # the feed opens by itself
    trainer.feed.close()


def test_determinism_is_given_back_as_it_was() -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        with determinism(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
