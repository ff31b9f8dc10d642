"""A .csv of millions of rows is read in less than a minute and 2 GB."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

from supancl.data.sources.csv_table import list_csv

FULL = os.environ.get("SUPANCL_FAULTS") == "full"
ROWS = 5_000_000 if FULL else 100_000
BYTES_PER_ROW = 150  # Python objects for a row need 500 and more
READ = r"""
import pathlib, re, sys, time
import torch
from supancl.data import opening
from supancl.data.preparing import prepare_data
from supancl.data.splits import DataSpec
from supancl.data.store.memory import ArrayImages

def store(items, *rest):  # decoding millions of images is not what is measured
    return ArrayImages(torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(items), 1, 1, 1)), []

opening.store_images, opening.dark_image_remarks = store, lambda *rest: []
spec = DataSpec(source=sys.argv[1])
data = prepare_data(opening.open_source(spec, 1), spec)
# not ru_maxrss: a process inherits it from the one that started it
peak = re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text()).group(1)
print(len(data.train) + len(data.held_out), time.process_time(), peak)
"""


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


def test_memory_per_row_of_weights(tmp_path):
    rows = 50_000
    lines = make_table(tmp_path, rows).read_text().splitlines()[1:]
    table = tmp_path / "weights.csv"
    cells = [f"{line.partition(',')[0]},{i % 2},1,{i % 7 / 7:.3f}" for i, line in enumerate(lines)]
    table.write_text("\n".join(["path,cat,dog,fox", *cells]))
    tracemalloc.start()
    listing = list_csv(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert listing.label_table.pairs.shape == (14, 3, 2), "rows of the same weights share them"
    assert peak / rows < BYTES_PER_ROW


def test_rows_without_their_images(tmp_path):
    table = make_table(tmp_path, ROWS)
    done = subprocess.run([sys.executable, "-c", READ, str(table)], capture_output=True, text=True, check=True)
    rows, seconds, kilobytes = map(float, done.stdout.split())
    print(f"{rows:,.0f} rows: {seconds:.0f} s of CPU time with the start, {kilobytes / 1e6:.2f} GB")
    assert rows == ROWS
    assert seconds < 60
    assert kilobytes < 2e6
