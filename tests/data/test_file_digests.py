"""`supancl data check SOURCE --hash FILE`: every byte of a source, written once and compared later."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.files import assert_mentions, class_folders, supancl


def make_folder(tmp_path: Path) -> tuple[str, Path]:
    return str(class_folders(tmp_path / "photos")), tmp_path / "photos" / "dog" / "3.png"


def make_shards(tmp_path: Path) -> tuple[str, Path]:
    photos = class_folders(tmp_path / "photos")
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            tar.add(photos / "cat" / f"{number}.png", f"{number}.png")
    return str(tmp_path / "{0..1}.tar"), tmp_path / "1.tar"


@pytest.mark.parametrize("make", [make_folder, make_shards])
def test_one_changed_byte_is_found_though_size_and_time_are_the_same(make, tmp_path, capsys) -> None:
    source, file = make(tmp_path)
    hashes = tmp_path / "hashes.json"
    assert supancl(capsys, "data", "check", source, "--hash", hashes).code == 0
    count = len(json.loads(hashes.read_text())["sha256"])
    said = supancl(capsys, "data", "check", source, "--hash", hashes, "--json", "-")
    assert said.code == 0
    assert json.loads(said.out[said.out.index("{") :])["same"] == count
    before, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    said = supancl(capsys, "data", "check", source, "--hash", hashes)
    assert said.code == 1
    assert_mentions(said.out, file.name)
