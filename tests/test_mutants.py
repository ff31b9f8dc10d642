"""The list of mutants fits the code, and its runner tells the killed from the living. `make mutants` tries them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.mutants.lists import GROUPS
from tests.mutants.mutant import Group, Mutant
from tests.mutants.run import ROOT

MODULES = {
    "losses",
    "labels",
    "pools",
    "branches",
    "schedules",
    "order",
    "specs",
    "augment",
    "checkpoint",
    "knn",
}

TOY = """
def total(values):
    result = 0
    for value in values:
        result += value
    return result
"""

TOY_TEST = """
from supancl.toy import total

def test_total():
    assert total([1, 2]) == 3
"""

# what the runner says of each of the toy's mutants
RUN = """
import sys
from pathlib import Path
from tests.mutants.mutant import Group, Mutant
from tests.mutants import run

run.CPU_SECONDS = 1
mutants = {
    "killed": Mutant("result += value", "result -= value"),
    "equal": Mutant("result += value", "result = value + result", equal="a sum either way"),
    "survivor": Mutant("result = 0", "result = 0.0"),
    "not equal": Mutant("result += value", "result = value", equal="or so it seems"),
    "endless": Mutant("        result += value", "        while True: pass"),
    "broken": Mutant("def total", "def totals"),
    "no Python": Mutant("result = 0", "result = ("),
}
chosen = tuple(mutants[name] for name in sys.argv[2:])
sys.exit(run.run([Group("toy.py", ("tests/test_toy.py",), chosen)], Path(sys.argv[1]), libraries=()))
"""


def try_toy(root: Path, *names: str) -> tuple[int, str]:
    command = [sys.executable, "-c", RUN, str(root), *names]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the toy's tests need none
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def make_toy(root: Path) -> None:
    (root / "src" / "supancl").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "src" / "supancl" / "__init__.py").touch()
    (root / "src" / "supancl" / "toy.py").write_text(TOY)
    (root / "tests" / "test_toy.py").write_text(TOY_TEST)
    (root / "pytest.ini").write_text("[pytest]\n")


def test_every_mutant_still_fits_the_code_once() -> None:
    assert [line for group in GROUPS for line in group.misfits(ROOT)] == []
    for group in GROUPS:
        assert len({(mutant.old, mutant.new) for mutant in group.mutants}) == len(group.mutants), group.module
        # pytest would load a file of src that it is given without its mutant
        paths = [test.partition("::")[0] for test in group.tests if "/" in test]
        assert all(path.startswith("tests/") and (ROOT / path).is_file() for path in paths), group.module


def test_there_are_enough_of_every_kind() -> None:
    assert sum(not mutant.equal for group in GROUPS for mutant in group.mutants) >= 150
    assert {Path(group.module).stem for group in GROUPS if len(group.mutants) >= 10} >= MODULES


def test_a_list_that_no_longer_fits_is_named(tmp_path: Path) -> None:
    make_toy(tmp_path)
    wrong = Group("toy.py", (), (Mutant("result", "x"), Mutant("gone", "x"), Mutant("= 0", "= 0"))).misfits(tmp_path)
    expected = ("toy.py: occurs 3 times", "toy.py: occurs 0 times", "toy.py: changes nothing: '= 0'")
    assert [line.startswith(start) for line, start in zip(wrong, expected, strict=True)] == [True] * 3


def test_the_runner_kills_one_and_lets_one_that_is_equal_live(tmp_path: Path) -> None:
    make_toy(tmp_path)
    code, text = try_toy(tmp_path, "killed", "equal", "endless")
    assert "toy.py: 1 killed, 1 timed out, 0 survived, 0 errors, 1 equal in meaning" in text
    assert code == 0, text


def test_survivors_equal_ones_that_die_and_errors_are_named(tmp_path: Path) -> None:
    make_toy(tmp_path)
    code, text = try_toy(tmp_path, "killed", "survivor", "not equal", "broken", "no Python")
    assert "toy.py: 1 killed, 0 timed out, 1 survived, 2 errors, 1 equal in meaning" in text
    assert "result = 0  ->  result = 0.0\n    survived" in text
    assert "marked as equal (or so it seems), but killed" in text
    assert "pytest ended with 2" in text
    assert code == 1, text
