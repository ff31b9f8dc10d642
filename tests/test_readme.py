"""Every command and every Python block of the README is run, and what it shows of the repository is so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files import class_folders

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
SHELL = [block for kind, block in BLOCKS if kind == "bash"]
SKIPPED = {"make test", ". .venv/bin/activate"}  # this very run; the environment that it runs in


def run(command: str, folder: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("block", SHELL, ids=[block.split()[-1] for block in SHELL])
def test_every_command_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", each=20)
    commands = [line for line in block.splitlines() if line not in SKIPPED]
    assert commands
    for command in commands:
        done = run(command, ROOT if command.startswith("make ") else tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    for name in re.findall(r"--out (\S+)", block):
        assert (tmp_path / name).exists(), name


@pytest.mark.parametrize("block", [block for kind, block in BLOCKS if kind == "python"])
def test_every_python_block_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block)
    done = run(f"{sys.executable} block.py", tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_loop_of_the_readme_is_the_example_and_fits_in_25_lines() -> None:
    example = (ROOT / "examples" / "own_loop.py").read_text()
    assert example in README
    assert len(example.splitlines()) <= 25


def test_the_tree_of_the_readme_names_every_file() -> None:
    tree = README.split("## The house")[1]
    for path in (ROOT / "src" / "supancl").iterdir():
        if path.name not in ("__init__.py", "py.typed", "__pycache__"):
            assert path.name in tree, path.name
    for path in (ROOT / "src" / "supancl" / "data").glob("[a-z]*.py"):
        assert f"data/{path.name}" in tree, path.name


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    for link in links:
        assert link.startswith("http") or (page.parent / link).exists(), link
