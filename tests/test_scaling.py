"""docs/scaling.md holds what experiments/benchmarks/scaling.py measured, and the model follows from it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from supancl.errors import BadInput
from tests.files import mentions

ROOT = Path(__file__).parent.parent
RESULTS = sorted((ROOT / "experiments" / "benchmarks" / "results").glob("scaling-*.json"))


@pytest.fixture(scope="module")
def report() -> ModuleType:
    where = importlib.util.spec_from_file_location(
        "scaling_tables", ROOT / "experiments" / "benchmarks" / "scaling_tables.py"
    )
    module = importlib.util.module_from_spec(where)
    sys.modules["scaling_tables"] = module
    where.loader.exec_module(module)
    return module


def made_up(step_ms: float = 40.0, per_thread: float = 100.0) -> dict:
    step = {
        "variant": "x",
        "parameters": 32_000_000,
        "norms": 57,
        "norm_channels": 31_424,
        "step_ms": step_ms,
        "pool_bytes": 10**9,
        "checkpoint_bytes": 2 * 10**9,
    }
    index = {
        "what": "index",
        "index_us": 90.0,
        "open_ms_per_shard": 1.0,
        "disk_bytes_per_image": 38.0,
        "memory_bytes_per_shard": 3000.0,
    }
    return {
        "about": "a made-up machine",
        "device": "cuda",
        "parts": {
            "order": [{"images": 10**9, "windowed_bytes": 6e6, "windowed_first_ms": 15.0}],
            "schedule": [{"steps": 10**6, "us_per_step": 2.0}],
            "stream": [index, {"what": "decode", "per_thread": per_thread, "file_bytes": 65_000}],
            "step": [step | {"step_ms": 0.98 * step_ms}, step, step],
        },
    }


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_page_shows_what_was_measured(path, report, tmp_path):
    page = tmp_path / "scaling.md"
    page.write_text((ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"), encoding="utf-8")
    report.put_into(page, json.loads(path.read_text()))
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def test_the_model_counts_what_is_sent_and_names_what_is_slowest(report):
    text = report.model(made_up())
    assert "| gradients that a GPU sends per step | 252 MB, 7.2 ms |" in text  # 2 * 63/64 * 32e6 * 4 bytes at 35 GB/s
    assert "| targets and labels gathered | 8.32 MB, 0.32 ms |" in text  # 63 * 128 rows of 256 floats and a label
    assert "228 collectives" in text  # 57 norms, two views, forward and backward
    assert "| one epoch, at the slowest of these | 2.7 h |" in text  # 1e9 / 64 / 1600
    # 1e9 / 64 / 128 steps of three doubles at 2 us: Trainer works out one epoch at a time
    assert "| schedules of an epoch | 2.93 MB, 0.2 s at its start | 122,070 steps; measured per step |" in text
    assert text.endswith("the first limit: 16 cores that decode.")
    assert report.model(made_up(per_thread=10_000.0)).endswith("the first limit: one GPU with the network.")


def test_the_tables_begin_with_where_when_and_with_which_code_they_were_measured(report):
    stamped = made_up() | {"measured": "measured 2000-01-01 at commit abc"}
    assert report.tables(stamped).startswith("a made-up machine, measured 2000-01-01 at commit abc.\n")
    assert report.tables(made_up()).startswith("a made-up machine.\n")


def test_a_million_prototypes_are_compared_with_no_pool(report):
    assert report.beside(made_up()["parts"]["step"]) == pytest.approx(1 / 0.98 - 1)
    assert "A million prototypes add +2.0% to the step" in report.tables(made_up())


def test_a_page_without_marks_is_refused(report, tmp_path):
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(BadInput, match=mentions("<!-- scaling: cuda -->", "<!-- end scaling: cuda -->")):
        report.put_into(tmp_path / "page.md", made_up())


def test_numbers_are_shown_with_their_units(report):
    rows = [{"pool": "queue", "slots": 1000, "push_ms": 0.1234, "bytes": 3_100_000}, {"pool": "none", "slots": 2}]
    assert report.table(rows).splitlines()[2:] == ["| queue | 1,000 | 0.123 | 3.1 MB |", "| none | 2 | - | - |"]
