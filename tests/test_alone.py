"""`make test` passes in a clone with nothing beside it: only tests/real looks at paths above the repository."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT / "tests" / "real"
ABOUT_IT = ("test_alone.py", "test_ci.py")  # they name such paths and open none
ELSEWHERE = re.compile(r"""\.\./shared|/\s*["']shared\b|SUPANCL_SHARED|\b(ROOT|REPOSITORY)\.parent\b""")
UPWARDS = re.compile(r"""__file__\)(\.resolve\(\))?(\.parents\[(?P<index>\d+)\]|(\.parent\b)+)(\s*/\s*["']\.\.["'])*""")


def paths_above(text: str, depth: int) -> list[str]:
    """What in a test file's text names a place above the repository, `depth` folders above the file."""
    found = [match[0] for match in ELSEWHERE.finditer(text)]
    for match in UPWARDS.finditer(text):
        climbed = int(match["index"]) + 1 if match["index"] else match[0].count(".parent")
        if climbed + match[0].count("..") > depth:
            found.append(match[0])
    return found


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("Path(__file__).parents[2] / 'docs'", False),
        ("Path(__file__).parent.parent.parent / 'docs'", False),
        ("Path(__file__).resolve().parents[3] / 'data'", True),
        ("Path(__file__).parent.parent.parent.parent", True),
        ("Path(__file__).parents[2] / '..' / 'data'", True),
        ("REPOSITORY.parent / name", True),
        ("open('../shared/data')", True),
        ("here / 'shared' / 'paper'", True),
        ("build('shared')", False),
    ],
)
def test_a_path_above_the_repository_is_seen(line: str, caught: bool) -> None:
    assert bool(paths_above(line, depth=3)) == caught


def test_no_test_looks_above_the_repository() -> None:
    found = {}
    for path in (ROOT / "tests").rglob("*.py"):
        if REAL not in path.parents and path.name not in ABOUT_IT:
            depth = len(path.relative_to(ROOT).parts)
            found[str(path.relative_to(ROOT))] = paths_above(path.read_text(encoding="utf-8"), depth)
    assert len(found) > 100
    assert {name: above for name, above in found.items() if above} == {}


def test_tests_on_real_data_need_a_variable_and_say_which(tmp_path: Path, forks: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SUPANCL_SHARED"}
    (tmp_path / "start.py").write_text("import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
    command = ["python", str(tmp_path / "start.py"), "-p", "no:cacheprovider", "tests/real"]
    done = subprocess.run(command, cwd=ROOT, env={**environment, **forks}, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = (done.stdout + done.stderr).strip().splitlines()
    assert "SUPANCL_SHARED" in line
