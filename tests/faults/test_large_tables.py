"""A .csv of millions of rows takes little memory and time; a line that never ends is refused."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from supancl.data.sources.table import list_table
from supancl.errors import BadInput

ROWS = 500_000


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_time_and_memory_per_row(tmp_path):
    with open(tmp_path / "table.csv", "w") as file:
        file.write("path,label,split\n")
        for i in range(ROWS):
            split = "test" if i % 10 == 7 else "train"
            file.write(f"folder-{i // 1000:04d}/{i % 1000:04d}.png,class {i % 999},{split}\n")
    before, since = peak(), time.process_time()
    listing = list_table(tmp_path / "table.csv")
    assert len(listing) == ROWS
    assert listing.items[12_345] == tmp_path / "folder-0012" / "0345.png"
    assert listing.classes[int(listing.labels.single[12_345])] == f"class {12_345 % 999}"
    assert time.process_time() - since < 2  # 10 s for five million, on a slow machine
    assert peak() - before < 300 * ROWS


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path):
    for header in (b"path,label\n0.png,", b""):
        with open(tmp_path / "table.csv", "wb") as file:
            file.write(header)
            file.truncate(10**9)
        before = peak()
        with pytest.raises(BadInput, match=r"table\.csv"):
            list_table(tmp_path / "table.csv")
        assert peak() - before < 3 * 10**8
