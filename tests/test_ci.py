"""`.ci/run` and the Makefile's targets, with tools that only write down where they were started."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = """#!/bin/sh
echo "$(basename "$0")|$PWD|$(ls -A ..) $(stat -c %a ..)|$PYTHONPATH|$SUPANCL_SHARED|$*" >> "$CALLS"
case "$(basename "$0") $*" in *"$BROKEN"*) exit 1;; esac
"""


class Clone:
    """A repository with the real .ci/run and Makefile, one changed file, and an environment of made-up tools."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls, self.temporary = root / "clone", root / "calls", root / "temporary"
        self.temporary.mkdir()
        for name in (".ci/run", "Makefile", "pyproject.toml"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        subprocess.run("git init -q && git add . && touch changed.py", shell=True, cwd=self.root, check=True)
        tools = [root / "tools" / "bin" / name for name in ("python", "ruff", "mypy")]
        for tool in (*tools, self.root / ".ci" / "dist"):
            tool.parent.mkdir(parents=True, exist_ok=True)
            tool.write_text(TOOL)
            tool.chmod(0o755)

    def run(self, *command: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        """The outcome, and per started tool: name, folder, what the one above holds and its mode, paths, words."""
        foreign = ("MAKE", "MFLAGS", "SUPANCL_SHARED")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment = {
            **inherited,
            "VENV": str(self.root.parent / "tools"),
            "TMPDIR": str(self.temporary),
            "CALLS": str(self.calls),
            "BROKEN": "nothing",
            **variables,
        }
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        return done, [line.split("|") for line in self.calls.read_text().splitlines()] if self.calls.exists() else []


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_ci_runs_every_part_on_a_copy_with_nothing_beside_it(clone: Clone) -> None:
    done, calls = clone.run(".ci/run")
    assert done.returncode == 0, done.stderr
    assert [call[0] for call in calls[:3]] == ["ruff", "ruff", "mypy"]
    words = [call[-1] for call in calls[3:]]
    assert [
        "tests/experiments" in words[1],
        "tests/distributed" in words[2],
        "tests/tables_and_figures" in words[3],
        "tests/docs" in words[4],
        "sphinx" in words[5],
        "tests/extras" in words[6],
        "tests/browser" in words[7],
        "tests/faults" in words[8],
        calls[3:][9][0] == "dist",
        "coverage report" in words[10],
    ] == [True] * 10
    for _, folder, beside, path, shared, _ in calls:
        assert clone.temporary in Path(folder).parents
        assert (beside, path, shared) == ("copy 755", f"{folder}/src", "")
    assert len(words) == 11
    assert "test-real not run" in done.stdout
    assert list(clone.temporary.iterdir()) == []


def test_ci_runs_the_tests_on_real_data_where_these_lie_beside_the_clone(clone: Clone) -> None:
    (clone.root.parent / "shared").mkdir()
    done, calls = clone.run(".ci/run")
    assert done.returncode == 0, done.stderr
    assert [call[4] for call in calls] == [""] * 14 + [str(clone.root.parent / "shared")]
    assert calls[-1][-1].endswith("tests/real")


def test_ci_stops_at_the_first_failure(clone: Clone) -> None:
    done, calls = clone.run(".ci/run", BROKEN="mypy")
    assert done.returncode != 0
    assert [call[0] for call in calls] == ["ruff", "ruff", "mypy"]
    assert list(clone.temporary.iterdir()) == []


def test_make_test_real_says_which_variable_is_missing(clone: Clone) -> None:
    done, calls = clone.run("make", "READY=", "test-real")
    assert done.returncode == 2
    assert "SUPANCL_SHARED=FOLDER" in done.stderr
    assert calls == []
