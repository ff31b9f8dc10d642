"""What is chosen by itself, and what is said where the fast way cannot be gone."""

from pathlib import Path

import pytest
import torch

from supancl import BadInput, Data, pretrain, recipe
from supancl.data.splits import full_split
from supancl.data.store.memory import PackedImages
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.distributed.ranks import pick_device
from supancl.runs.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from supancl.runs.folder import RunFolder
from supancl.training.speed import MIN_STEPS_TO_COMPILE, can_compile, with_speed
from supancl.training.start import settle_recipe
from supancl.training.trainer import Trainer, can_replay
from tests.helpers import contents, mentions, tiny_data, tiny_recipe

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """A GPU to ask about, with bf16 or without."""

    def present(bf16: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
        monkeypatch.setattr("supancl.training.speed.can_compile", lambda device: True)

    return present


def chosen(made, device: torch.device, images: int) -> tuple:
    train = with_speed(made, device, images).train
    return train.precision, train.compile, train.replay


def test_a_cpu_gets_the_plain_step() -> None:
    assert chosen(recipe("cifar100.supsiam"), CPU, 50_000) == ("fp32", False, False)


def test_a_gpu_gets_the_fast_one_and_compiles_where_the_run_is_long_enough(gpu) -> None:
    gpu(bf16=True)
    made = recipe("cifar100.supsiam")
    long_enough = made.with_set({"train.epochs": -(-MIN_STEPS_TO_COMPILE // 195)})
    assert chosen(long_enough, CUDA, 50_000) == ("bf16", True, True)
    assert chosen(made.with_set({"train.epochs": 2}), CUDA, 50_000) == ("bf16", False, True)
    assert chosen(long_enough.with_set({"train.deterministic": True}), CUDA, 50_000) == ("bf16", False, False)


def test_a_gpu_without_bf16_trains_in_fp32_or_says_so(gpu) -> None:
    gpu(bf16=False)
    assert chosen(recipe("cifar100.supsiam"), CUDA, 50_000)[0] == "fp32"
    with pytest.raises(BadInput, match=mentions("train.precision", "bf16")):
        with_speed(recipe("cifar100.supsiam").with_set({"train.precision": "bf16"}), CUDA, 50_000)


def test_without_a_gpu_auto_takes_the_cpu_and_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    with pytest.raises(BadInput, match=mentions("cuda")):
        pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device("auto") == CUDA


def test_a_run_keeps_what_was_chosen_and_continues_when_it_is_left_open_again(tmp_path: Path) -> None:
    made, data = tiny_recipe(), tiny_data()
    pretrain(made, data, tmp_path / "run")
    kept = RunFolder(tmp_path / "run").read_recipe()[0].train
    assert (made.train.precision, kept.precision, kept.compile, kept.replay) == ("auto", "fp32", False, False)
    pretrain(made, data, tmp_path / "run", resume=True)
    with pytest.raises(BadInput, match=mentions("train.precision")):
        pretrain(made.with_set({"train.precision": "bf16"}), data, tmp_path / "run", resume=True)


def test_a_run_may_go_on_compiled_or_captured_otherwise(tmp_path: Path) -> None:
    made, data, folder = tiny_recipe(), tiny_data(), RunFolder(tmp_path / "run")
    pretrain(made, data, folder.path)
    kept = folder.read_recipe()[0]
    went_on = settle_recipe(kept.with_set({"train.replay": True}), data, folder, resume=True, init=None)[0].train
    assert (went_on.replay, went_on.compile, went_on.precision) == (True, False, "fp32")
    assert settle_recipe(kept, data, folder, resume=True, init=None)[0].train.replay is False
    pretrain(made.with_set({"train.replay": True}), data, folder.path, resume=True)
    pretrain(data=data, out=folder.path, resume=True, compile=True)
    for settings, named in (({"epochs": 9}, "train.epochs"), ({"compat": "released-code"}, "compat")):
        with pytest.raises(BadInput, match=mentions(named)):
            pretrain(data=data, out=folder.path, resume=True, **settings)


def packed_trainer(replay: bool) -> Trainer:
    random = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (1, 8, 8), generator=random, dtype=torch.uint8) for _ in range(48)]
    split = full_split(PackedImages.from_images(images), torch.arange(48) % 3, [str(i) for i in range(48)])
    return Trainer(tiny_recipe(train__replay=replay), Data(split, split, ("a", "b", "c")), CPU)


def test_a_step_is_captured_on_one_gpu_with_batches_of_one_shape() -> None:
    one = packed_trainer(replay=True)
    usual = {"recipe": one.recipe, "device": CUDA, "ranks": SINGLE_PROCESS, "feed": one.feed}
    assert not one.captured.may_replay
    assert can_replay(**usual)
    for changed in (
        {"ranks": Ranks(2)},
        {"device": CPU},
        {"recipe": one.recipe.with_set({"train.replay": False})},
    ):
        assert not can_replay(**usual | changed), changed


def test_a_run_of_a_gpu_is_refused_here_before_anything_changes(tmp_path: Path) -> None:
    pretrain(tiny_recipe(), tiny_data(), tmp_path / "run")
    newest = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    content = load_checkpoint(newest)
    content["rng"] |= {"cuda": torch.zeros(16, dtype=torch.uint8), "views": torch.zeros(16, dtype=torch.uint8)}
    save_checkpoint(newest.parent, content["step"], content)
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=mentions("started")):
        pretrain(None, tiny_data(), tmp_path / "run", resume=True)
    assert contents(tmp_path) == before


def test_a_compiler_that_fails_is_not_chosen_and_one_that_was_asked_for_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuses(module):
        def forward(*args):
            raise torch._dynamo.exc.BackendCompilerFailed(compile, RuntimeError("no C compiler"), None)

        return forward

    monkeypatch.setattr(torch, "compile", refuses)
    assert not can_compile(CPU)
    with pytest.raises(BadInput, match=mentions("no C compiler", "train.compile=false")):
        pretrain(tiny_recipe(train__compile=True), tiny_data(), tmp_path / "run")
    pretrain(data=tiny_data(), out=tmp_path / "run", resume=True, compile=False)
