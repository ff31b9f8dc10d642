"""Images that are replaced under the same names are noticed on resume, wherever they are stored."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from supancl import BadInput, pretrain, recipe
from supancl.data.content import SAMPLED_BLOCKS, shard_content
from supancl.runs.folder import RunFolder
from tests.helpers import class_folders, mentions

STORES = {
    "memory": {},
    "cache": {"data.cache": "always"},
    "decoded each time": {"data.cache": "never", "data.memory_gb": 1e-9},
}


def photo_recipe(source: Path, **settings: object):
    return recipe("digits.supsiam").with_set(
        {
            "data.source": str(source), "views.size": 8, "encoder.width": 16, "train.batch_size": 4, "train.epochs": 1,
            "train.device": "cpu", "train.monitor_every": 0, "schedule.warmup_epochs": 0, "data.short_side": 8,
            **settings,
        }
    )  # fmt: skip


def replace_image(path: Path, keep_time: bool) -> None:
    """Another picture under the same name and, if asked for, of the same time."""
    before = path.stat()
    with Image.open(path) as image:
        pixels = 255 - np.asarray(image)
    Image.fromarray(pixels).save(path)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("keep_time", [False, True])
@pytest.mark.parametrize("store", STORES)
def test_a_replaced_image_of_a_folder_is_noticed_on_resume(store: str, keep_time: bool, tmp_path: Path) -> None:
    photos, run = class_folders(tmp_path / "photos"), tmp_path / "run"
    pretrain(photo_recipe(photos, **STORES[store]), out=run)
    assert RunFolder(run).read_data()[0]["content_of"] == "every pixel"
    replace_image(photos / "dog" / "3.png", keep_time)
    with pytest.raises(BadInput, match=mentions("changed")):
        pretrain(None, out=run, resume=True)


# --- shards that are streamed -----------------------------------------------------------------------------------------


def test_a_shard_is_compared_by_size_and_samples_and_a_copy_is_the_same(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(bytes(range(256)) * 4096)
    content = shard_content([shard])
    copy = tmp_path / "b.tar"
    shutil.copyfile(shard, copy)
    os.utime(copy, ns=(1, 1))
    assert shard_content([copy]).digest == content.digest
    with open(copy, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    assert shard_content([copy]).digest != content.digest
    copy.write_bytes(shard.read_bytes() + b"\0")
    assert shard_content([copy]).digest != content.digest
    assert SAMPLED_BLOCKS >= 2  # the first and the last bytes are always among them
    (tmp_path / "empty.tar").write_bytes(b"")
    assert len(shard_content([tmp_path / "empty.tar"]).values) == 1
