"""Promises that are new since 0.1.0, in processes of their own (promises.py tries other versions, too)."""

from __future__ import annotations

import os

import pytest

from tests.faults.promises import SCENARIOS, try_promise

FULL = os.environ.get("SUPANCL_FAULTS") == "full"
# the others are also tried elsewhere, in one process
SHORT = ("a FIFO in place of a table", "a link .lock to a file of mine")


@pytest.mark.parametrize("scenario", SCENARIOS if FULL else SHORT)
def test_a_promise_is_kept(scenario):
    assert try_promise(scenario)
