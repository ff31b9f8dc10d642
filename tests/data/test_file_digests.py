"""`supancl data check SOURCE --hash FILE`: every byte of a source, written once and compared later."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.files import archive, assert_mentions, assert_one_line, class_folders, supancl, table


def make_folder(tmp_path: Path) -> tuple[str, Path]:
    return str(class_folders(tmp_path / "photos")), tmp_path / "photos" / "dog" / "3.png"


def make_table(tmp_path: Path) -> tuple[str, Path]:
    class_folders(tmp_path / "photos")
    lines = [f"photos/{name}/{i}.png,{name}" for name in ("cat", "dog") for i in range(6)]
    return str(table(tmp_path / "photos.csv", "path,label", *lines)), tmp_path / "photos" / "dog" / "3.png"


def make_archive(tmp_path: Path) -> tuple[str, Path]:
    path = archive(tmp_path / "data.npz")
    return str(path), path


def make_shards(tmp_path: Path) -> tuple[str, Path]:
    photos = class_folders(tmp_path / "photos")
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            tar.add(photos / "cat" / f"{number}.png", f"{number}.png")
    return str(tmp_path / "{0..1}.tar"), tmp_path / "1.tar"


@pytest.mark.parametrize("make", [make_folder, make_table, make_archive, make_shards])
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
    assert_mentions(said.out, "changed", file.name)
    assert_one_line(said.err, source, hashes, "1 changed", "restore")


def test_missing_and_new_files_are_named(tmp_path, capsys) -> None:
    source, file = make_folder(tmp_path)
    hashes = tmp_path / "hashes.json"
    supancl(capsys, "data", "check", source, "--hash", hashes)
    file.rename(file.with_name("9.png"))
    said = supancl(capsys, "data", "check", source, "--hash", hashes)
    assert said.code == 1
    assert_mentions(said.out, "missing", "dog/3.png", "new", "dog/9.png")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sha256": 3}', "[" * 5000])
def test_a_file_that_holds_no_digests_is_refused_and_not_overwritten(content, tmp_path, capsys) -> None:
    source, _ = make_folder(tmp_path)
    hashes = tmp_path / "notes.txt"
    hashes.write_text(content)
    said = supancl(capsys, "data", "check", source, "--hash", hashes)
    assert said.code == 2
    assert_one_line(said.err, hashes, "--hash")
    assert hashes.read_text() == content


def test_what_is_not_in_files_is_refused(capsys, tmp_path) -> None:
    said = supancl(capsys, "data", "check", "digits", "--hash", tmp_path / "hashes.json")
    assert said.code == 2
    assert_one_line(said.err, "digits", "folder")
