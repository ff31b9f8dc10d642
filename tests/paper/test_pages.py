"""What docs/paper.md names is there: commands, recipes, names of the code."""

from __future__ import annotations

import fnmatch
import pkgutil
import re
from pathlib import Path

import pytest

from supancl.cli import main
from supancl.core.branches import Branches
from supancl.core.pools import Pool
from supancl.recipes import RECIPES

NAMED = re.findall(r"`([^`]+)`", (Path(__file__).parents[2] / "docs" / "paper.md").read_text())
OWNERS = {"Branches": Branches, "Pool": Pool}


def test_commands_of_the_papers_page() -> None:
    commands = {tuple(re.findall(r"^supancl(?: [a-z]+)+", name)[0].split()) for name in NAMED if name[:8] == "supancl "}
    assert len(commands) >= 12
    for _, *words in commands:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0, words


def test_recipes_of_the_papers_page() -> None:
    patterns = [name for name in NAMED if re.fullmatch(r"(imagenet100|vit|cifar10|cifar100)\.[\w*-]+", name)]
    assert len(patterns) >= 5
    assert all(fnmatch.filter(RECIPES, pattern) for pattern in patterns)


def test_names_of_the_code_on_the_papers_page() -> None:
    rooms = "core|data|evaluate|probes|training"
    paths = [
        found[0] for name in NAMED if (found := re.match(rf"(?:(?:{rooms})(?:\.\w+)+|(?:Branches|Pool)\.\w+)", name))
    ]
    assert len(paths) >= 15
    for path in paths:
        first, _, rest = path.partition(".")
        assert hasattr(OWNERS[first], rest) if first in OWNERS else pkgutil.resolve_name(f"supancl.{path}")
