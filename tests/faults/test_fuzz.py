"""Valid files, changed at random: every reader accepts them or refuses them with one line (fuzz.py)."""

from __future__ import annotations

import os

import pytest

from tests.faults.fuzz import KINDS, run_kind

# SUPANCL_FAULTS=full: 200,000 inputs, in parts that two processes can share
TOTAL, PARTS = (200_000, 8) if os.environ.get("SUPANCL_FAULTS") == "full" else (1_500, 1)
SEED = int(os.environ.get("SUPANCL_FAULTS_SEED", "0"))
# of these more than 30% must be accepted, or nothing behind the reader is tried
MOSTLY_VALID = ("csv", "csv of paths", "voc", "npz", "tar")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_are_accepted_or_refused(kind, part, capsys):
    tally = run_kind(kind, SEED * PARTS + part, TOTAL // PARTS)
    with capsys.disabled():
        print(f"\n{kind}: {tally}")
    assert not tally.crashes, str(tally)
    assert tally.tried >= KINDS[kind][1] * (TOTAL // PARTS) - 1
    if kind in MOSTLY_VALID:
        assert tally.rate > 30
