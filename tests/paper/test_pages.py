"""What docs/paper.md and docs/monitor.md say of the code and of the paper's tables is so."""

from __future__ import annotations

import fnmatch
import pkgutil
import re
from pathlib import Path

import pytest

from supancl.cli import main
from supancl.core.branches import Branches
from supancl.core.pools import Pool
from supancl.paper import numbers
from supancl.paper.toy import tables as toy_tables
from supancl.recipes import RECIPES
from supancl.training import monitor, nonfinite
from supancl.training.trainer import Trainer

DOCS = Path(__file__).parents[2] / "docs"
PAPER, MONITOR = (DOCS / "paper.md").read_text(), " ".join((DOCS / "monitor.md").read_text().split())
TABLE, SLIPS = PAPER.split("## Slips in the paper")
NAMED = re.findall(r"`([^`]+)`", TABLE)
COMMANDS = [name for name in NAMED if name.startswith("supancl ")]
ROWS = [name for name in NAMED if re.fullmatch(r"(imagenet100|vit|cifar10|cifar100)\.[\w*-]+", name)]
OWNERS = {"Branches": Branches, "Pool": Pool, "Trainer": Trainer}
NAMES = [
    name
    for name in NAMED
    if name not in (*COMMANDS, *ROWS)
    and re.match(r"[A-Za-z][\w.]*(\(.*)?$", name)
    and not name.endswith((".py", ".json", ".jsonl", ".png"))
    and name not in ("class-queues", "prototypes")
]


def test_the_page_is_read() -> None:
    assert len(COMMANDS) >= 12
    assert len(ROWS) >= 5
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_papers_page_is_there(name: str) -> None:
    path = re.match(r"[\w.]+", name)
    assert path is not None
    first, _, rest = path.group().partition(".")
    if first in OWNERS:
        assert hasattr(OWNERS[first], rest), name
    else:
        assert pkgutil.resolve_name(f"supancl.{path.group()}") is not None


@pytest.mark.parametrize("name", ROWS)
def test_every_recipe_of_the_papers_page_is_there(name: str) -> None:
    assert fnmatch.filter(RECIPES, name)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_papers_page_is_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split()[1:], "--help"])
    assert ended.value.code == 0, capsys.readouterr().err


def test_the_slips_are_in_the_papers_tables() -> None:
    toy = toy_tables.PAPER
    worse = [row[name] for row in toy.values() for name in toy_tables.TABLE_2_COLUMNS if row[name] < toy[1.0][name]]
    compared = (len(toy) - 1) * len(toy_tables.TABLE_2_COLUMNS)
    assert f"in {compared - len(worse)} of the {compared}" in " ".join(SLIPS.split())
    for value in (*worse, toy[1.0]["interpolation 0.8"]):
        assert f"{value:.2f}" in SLIPS
    losses = {alpha: row[0] for alpha, row in numbers.METRIC_IMAGENET.items()}
    assert losses["1"] > losses["0.8"]
    assert f"{losses['0.8']:.4f}" in SLIPS
    assert f"{losses['1']:.4f}" in SLIPS
    ours, theirs = (numbers.TRANSFER_VIT[name][1:] for name in ("supbyol", "supmoco"))  # the first is the rank
    behind = [(own, other) for own, other in zip(ours, theirs, strict=True) if own < other]
    assert len(behind) == 2
    assert all(f"{own:.2f}" in SLIPS and f"{other:.2f}" in SLIPS for own, other in behind)


def test_the_monitors_page_has_its_numbers() -> None:
    words = {2: "two", 3: "three"}
    for said in (
        f"relative std below {monitor.COLLAPSED_STD} at {words[monitor.LOW_STD_IN_A_ROW]} logged steps in a row",
        f"effective rank below {monitor.COLLAPSED_RANK:g} at {words[monitor.LOW_RANK_IN_A_ROW]} checks in a row",
        f"up to {monitor.MAX_IMAGES:,} held-out and {monitor.MAX_IMAGES:,} training images",
        f"at the {nonfinite.MAX_SKIPPED_STEPS}th, or at more than {nonfinite.MAX_SKIPPED_FRACTION:.0%} of an epoch",
        f"at most {words[nonfinite.MAX_ROLLBACKS]} times",
    ):
        assert said in MONITOR
