"""A .csv of millions of rows takes little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from supancl.data.sources.csv_table import list_csv

BYTES_PER_ROW = 150  # Python objects for a row need 500 and more


def make_table(root: Path, rows: int) -> Path:
    """A table of distinct paths: folders that are links to one folder of a thousand files."""
    (root / "files").mkdir(parents=True)
    for i in range(1000):
        (root / "files" / f"{i:04d}.png").touch()
    for folder in range(-(-rows // 1000)):
        (root / f"folder-{folder:04d}").symlink_to("files")
    table = root / "table.csv"
    with open(table, "w") as file:
        file.write("path,label,split\n")
        for i in range(rows):
            split = "test" if i % 10 == 7 else "train"
            file.write(f"folder-{i // 1000:04d}/{i % 1000:04d}.png,class {i % 999},{split}\n")
    return table


def test_memory_per_row(tmp_path):
    rows = 50_000
    table = make_table(tmp_path, rows)
    tracemalloc.start()
    listing = list_csv(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(listing.entries) == rows
    assert listing.entries[12_345] == ("train", tmp_path / "folder-0012" / "0345.png", f"class {12_345 % 999}")
    assert not listing.remarks
    assert peak / rows < BYTES_PER_ROW
