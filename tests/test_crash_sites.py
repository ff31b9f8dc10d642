"""Input that once ended in an internal error or in a traceback: it is bad input, with exit code 2 and one line.

tests/faults/fuzz.py found these; here is the shortest input for each.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from supancl import Reporter, pretrain
from supancl.config import MAX_JSON_DEPTH, parse_json
from supancl.core.encoders import EncoderSpec
from supancl.data.sources.csv_table import list_csv
from supancl.data.sources.tars import list_tars
from supancl.data.splits import sorted_names
from supancl.errors import BadInput
from supancl.files import (
    LEFT_OVER_AGE,
    left_over_files,
    remove_left_over_files,
    temporary_path,
    why_unwritable,
    write_text,
)
from supancl.paper.tables.entries import Entry
from supancl.training.trainer import Trainer
from supancl.weights.checkpoint import load_checkpoint
from supancl.weights.encoder_file import load_encoder, load_projector, save_encoder
from supancl.weights.importing import open_encoder
from supancl.weights.run_folder import RunFolder
from tests.data.test_tars import plain
from tests.files import TINY, assert_refused, class_folders, mentions, picture, supancl, table
from tests.tiny import tiny_data, tiny_recipe

DEEP = "[" * 5000


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run with an evaluation."""
    run = tmp_path_factory.mktemp("finished") / "run"
    pretrain(tiny_recipe(train__epochs=1), tiny_data(), out=run)
    RunFolder(run).write_evaluation("knn", {"protocol": "knn", "accuracy": 50.0})
    return run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_is_parsed_or_refused():
    assert parse_json("[" * 90 + "]" * 90) is not None
    for text in (DEEP, "[" * 500 + "]" * 500, '{"a":' * 200 + "1" + "}" * 200, "9" * 5000):
        with pytest.raises(ValueError):
            parse_json(text)
    assert MAX_JSON_DEPTH == 100


def test_a_value_of_5000_brackets(capsys):
    said = supancl(capsys, "recipes", "digits.supsiam", "--set", f"loss.alpha={DEEP}")
    assert_refused(said, "loss.alpha", "float")
    assert len(said.err) < 500


@pytest.mark.parametrize("change", [
    {"classes": 3}, {"classes": {"a": 1}}, {"data": ["x"]}, {"data": 5}, {"data": "text"},
    {"recipe": []}, {"plugins": 7, "classes": "cat"},
], ids=str)  # fmt: skip
def test_a_recipe_with_wrong_types(run, capsys, change):
    content = json.loads((run / "recipe.json").read_text())
    (run / "recipe.json").write_text(json.dumps({**content, **change}))
    for command in (("pretrain", "--resume", "--out", run), ("evaluate", "knn", run), ("paper", "table", "3", run)):
        assert_refused(supancl(capsys, *command), run / "recipe.json", "restore")


def test_deep_json_in_a_result(run, capsys):
    (run / "evaluate" / "knn.json").write_text(DEEP)
    assert_refused(supancl(capsys, "paper", "table", "3", run), "knn.json", "evaluate")


@pytest.mark.parametrize("row", [{}, {"ssl": "x"}, {"ssl": None}, {"ssl": [1]}, {"ssl": 10**400}, {"ssl": True}])
def test_a_table_of_logs_without_ssl(run, row):
    lines = [{"kind": "train", "step": 1, "epoch": 0, **row}, {"kind": "monitor", "step": 1, "epoch": 0, "knn": {}}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = Entry(run, RunFolder(run).read_recipe()[0])
    assert [value.value for value in entry.find("ssl")] == ([1.0] if row == {"ssl": True} else [])
    assert entry.find("knn") == []


# --- labels and tables ------------------------------------------------------------------------------------------------


def test_labels_of_5000_digits(tmp_path):
    picture(tmp_path / "a.png")
    with pytest.raises(BadInput, match=mentions("table.csv", "line 2", "label", "5,000")):
        list_csv(table(tmp_path / "table.csv", "path,label", f"a.png,{'9' * 5000}"))
    image = (tmp_path / "a.png").read_bytes()
    plain(tmp_path / "x.tar", [("0.png", image), ("0.cls", b"9" * 5000)])
    with pytest.raises(BadInput, match=mentions("x.tar", "0.cls", "label", "5,000")):
        list_tars(str(tmp_path / "x.tar"))
    assert sorted_names({"10", "9", "009", "1" * 5000}, by_number=True) == ("009", "9", "10", "1" * 5000)


def test_a_path_that_is_too_long(tmp_path):
    with pytest.raises(BadInput, match=mentions("table.csv", "line 2", "no file")):
        list_csv(table(tmp_path / "table.csv", "path,label", f"{'a' * 5000},x"))


def test_deep_json_in_a_label(tmp_path):
    image = picture(tmp_path / "a.png").read_bytes()
    plain(tmp_path / "x.tar", [("0.png", image), ("0.json", DEEP.encode())])
    with pytest.raises(BadInput, match=mentions("x.tar", "0", "label")):
        list_tars(str(tmp_path / "x.tar"))


# --- weights ----------------------------------------------------------------------------------------------------------


def with_metadata(file: Path, **changes: str) -> None:
    with safe_open(file, framework="pt") as handle:
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        metadata = handle.metadata()
    save_file(tensors, file, metadata={**metadata, **changes})


@pytest.mark.parametrize(("field", "value"), [
    ("size", 10**9), ("size", 10**30), ("width", 10**6), ("width", 2**40), ("channels", 10**9), ("width", 17),
])  # fmt: skip
def test_absurd_sizes_in_the_metadata_of_an_encoder(tmp_path, field, value):
    """Nothing of that size is made: the shapes are compared first."""
    spec = EncoderSpec("cnn", channels=1, size=8, width=16, mean=(0.5,), std=(0.5,))
    save_encoder(tmp_path / "encoder.safetensors", spec.build(), (), "x")
    content = {"name": "cnn", "channels": 1, "size": 8, "width": 16, "mean": [0.5], "std": [0.5], field: value}
    with_metadata(tmp_path / "encoder.safetensors", encoder=json.dumps(content))
    with pytest.raises(BadInput, match=mentions(tmp_path / "encoder.safetensors")):
        load_encoder(tmp_path)


@pytest.mark.parametrize("change", [
    {"input_width": "-8"}, {"input_width": "16.0"}, {"input_width": str(10**12)},
    {"head": '{"hidden": [], "out": null}'}, {"head": '{"out": 1000000000}'},
], ids=str)  # fmt: skip
def test_absurd_sizes_in_the_metadata_of_a_projector(run, change):
    with_metadata(run / "projector.safetensors", **change)
    with pytest.raises(BadInput, match=mentions(run / "projector.safetensors")):
        load_projector(run)


@pytest.mark.parametrize("step", [-5, 1e30, float("nan"), float("inf"), 10**30, "7", None, [1]])
def test_a_checkpoint_of_an_impossible_step(tmp_path, step):
    trainer = Trainer(tiny_recipe(), tiny_data(), torch.device("cpu"))
    path = tmp_path / "step-000000001.pt"
    torch.save({"schema_version": 1, **trainer.state(), "step": step}, path)
    with pytest.raises(BadInput, match=mentions("checkpoint", "step")):
        trainer.load(load_checkpoint(path))


ODD_TENSORS = {
    "sparse": lambda value: value.to_sparse(),
    "meta": lambda value: value.to("meta"),
    "quantised": lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
    "scalar": lambda value: torch.zeros(()),
    "flat": lambda value: value.reshape(-1),
    "empty": lambda value: value[..., :0],
    "stretched": lambda value: torch.zeros(()).expand(10**6, 10**6),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD_TENSORS)
@pytest.mark.parametrize(("encoder", "name", "given"), [
    ("resnet18", "conv1.weight", ""), ("resnet18", "layer1.0.conv1.weight", ""),
    ("resnet18", "layer1.0.conv2.weight", ""),
    ("resnet18", "conv1.weight", "resnet18@"),
    ("timm:vit_tiny_patch16_224", "patch_embed.proj.weight", ""), ("timm:vit_tiny_patch16_224", "pos_embed", ""),
    ("timm:vit_tiny_patch16_224", "pos_embed", "timm:vit_tiny_patch16_224@"),
])  # fmt: skip
def test_odd_tensors_of_a_foreign_checkpoint(tmp_path, kind, encoder, name, given):
    state = {key: torch.zeros((), dtype=value.dtype).expand(value.shape) for key, value in shapes(encoder).items()}
    state[name] = ODD_TENSORS[kind](torch.zeros(state[name].shape))
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(BadInput, match=mentions(tmp_path / "other.pt")):
        open_encoder(f"{given}{tmp_path / 'other.pt'}")


def shapes(encoder: str) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        return dict(EncoderSpec(encoder, size=32).build().body.state_dict())


@pytest.mark.parametrize(("positions", "width"), [(1, 192), (0, 192), (10, 191), (5, 5), (10**6 + 1, 192), (3, 192)])
def test_odd_position_embeddings(tmp_path, positions, width):
    state = {key: torch.zeros(()).expand(value.shape) for key, value in shapes("timm:vit_tiny_patch16_224").items()}
    state["pos_embed"] = torch.zeros(()).expand(1, positions, width)
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(BadInput, match=mentions(tmp_path / "other.pt")):
        open_encoder(tmp_path / "other.pt")


def test_lsun_is_not_offered(tmp_path, capsys, monkeypatch):
    """torchvision unpickles _cache_... of the working folder when it opens LSUN."""
    monkeypatch.chdir(tmp_path)
    for name in ("LSUN", "LSUNClass"):
        assert_refused(supancl(capsys, "data", "show", f"torchvision:{name}@."), name, "cache file", "class folders")
    assert "LSUN" not in supancl(capsys, "data", "show", "torchvision:LSUM@.").err


# --- folders and disks ------------------------------------------------------------------------------------------------


def leave_over(folder: Path, age: float = 2 * LEFT_OVER_AGE) -> Path:
    """A temporary file as a killed process leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = temporary_path(folder / "x.json")
    path.write_text("half")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_left_over_files_are_removed(run, cache_root):
    locked = [leave_over(run, age=0), leave_over(run / "checkpoints", age=0)]
    old, new = leave_over(run / "evaluate"), run / "evaluate" / ".new.json.1-ab.tmp"
    new.write_text("another process is writing it")
    RunFolder(run).remove_temporary_files()
    assert not any(path.exists() for path in (*locked, old))
    assert new.exists()
    old = leave_over(run / "evaluate")
    RunFolder(run).write_evaluation("knn", {})
    assert not old.exists()
    assert left_over_files(run / "evaluate", min_age=0) == [new]
    remove_left_over_files(run / "missing")


def test_left_over_files_of_caches_are_counted_and_removed(run, cache_root, capsys):
    class_folders(run.parent / "data")
    features = leave_over(cache_root / "features")
    said = supancl(capsys, "data", "cache", "--list", "--json", run.parent / "list.json")
    assert said.code == 0
    assert json.loads((run.parent / "list.json").read_text())["left_over"] == [str(features)]
    assert supancl(capsys, "evaluate", "knn", run, "--data", run.parent / "data").code == 0
    assert not features.exists()


def test_a_read_only_file_system_says_so(tmp_path, monkeypatch):
    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(BadInput, match=mentions("a.txt", "Read-only file system", "writable", "--out")) as caught:
        write_text(tmp_path / "a.txt", "x")
    assert "Make room" not in str(caught.value)
    status = os.statvfs(tmp_path)
    read_only = type("Status", (), {"f_flag": status.f_flag | os.ST_RDONLY})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    assert why_unwritable(tmp_path) == os.strerror(errno.EROFS)


def test_a_run_folder_removed_during_training(tmp_path):
    class Removes(Reporter):
        def on_step(self, step, row):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(BadInput, match=mentions(tmp_path / "run", "removed", "another out")) as caught:
        pretrain(tiny_recipe(), tiny_data(), out=tmp_path / "run", reporter=Removes())
    assert "Make room" not in str(caught.value)


@pytest.mark.parametrize("error", [
    MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    RuntimeError("Storage size calculation overflowed with sizes=[2305843009213693952]"),
], ids=str)  # fmt: skip
def test_out_of_memory_is_not_an_internal_error(monkeypatch, capsys, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("supancl.cli.recipes.command", fail)
    assert_refused(supancl(capsys, "recipes"), "out of memory", "--batch-size")


def test_sizes_beyond_any_library(capsys, tmp_path):
    for field in ("heads.projector.out", "pool.size", "train.batch_size", "encoder.width"):
        assert_refused(supancl(capsys, "recipes", "digits.supsiam", "--set", f"{field}=1e30"), field, "at most")
    assert_refused(supancl(capsys, "pretrain", "digits.supsiam", *TINY, "--set", "encoder.size=100000", "--out",
                           tmp_path / "run"), "size", "at most", "16384")  # fmt: skip
