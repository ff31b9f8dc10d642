"""tests/walks.py counts what is really called; docs/architecture.md shows the rooms that are there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import walks
from tests.test_imports import RANK
from tests.test_imports import ROOT as PACKAGE

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = PAGE.split("```")[1]


@pytest.fixture
def forked_walks(forks, monkeypatch):
    """The process of a walk is forked: it need not import torch, only what is ours."""
    run, python = subprocess.run, str(Path(forks["SUPANCL_FORKS"]).with_name("python"))

    def run_forked(words, env, **more):
        assert words[:2] == [sys.executable, "-P"]
        assert env["PYTHONPATH"] == str(PACKAGE.parent)  # the one that the fork imports, too
        return run([python, *words[2:]], env={**env, **forks}, **more)

    monkeypatch.setattr(walks.subprocess, "run", run_forked)


@pytest.mark.usefixtures("forked_walks")
def test_the_walk_to_backward_is_the_stack_at_its_first_call(tmp_path):
    found = walks.walk_in(ROOT, tmp_path, "backward")
    assert found["step"].startswith("training/step.py:")
    assert found["hops"][-1] == found["step"]
    assert found["hops"][0].startswith("cli/")
    assert {hop.split(":")[0] for hop in found["hops"]} == set(found["files"])
    assert 4 <= len(found["files"]) <= len(found["hops"]) <= 12
    assert found["lines"] == sum(len((PACKAGE / file).read_text().splitlines()) for file in found["files"])
    assert 20 <= found["step_lines"] <= 80
    with_forward = set(found["with_forward"]["files"])
    assert with_forward > {*found["files"], "core/branches.py", "core/losses.py", "core/encoders.py"}
    assert not any(file.startswith(("data/", "weights/", "evaluate/")) for file in with_forward - set(found["files"]))


def test_the_text_of_this_tree_is_counted():
    found = walks.count_text(PACKAGE)
    files = sorted(PACKAGE.rglob("*.py"))
    assert found["modules"] == len(files)
    assert found["lines"] == sum(len(path.read_text().splitlines()) for path in files)
    assert {*found["rooms"], *(name.removesuffix(".py") for name in found["loose"])} <= set(RANK)
    assert {f"core/{name}.py" for name in walks.CORE} <= set(found["core"]["files"])
    assert 0 < found["core"]["lines"] < found["lines"]


@pytest.mark.parametrize(
    ("source", "first", "named"),
    [
        ("def f(): pass", 1, 0),
        ("@property\n@cached\ndef f(self, a, /, b, *rest, c=1, **more): pass", 1, 3),
        ("\nasync def f(a): pass", 2, 1),
    ],
)
def test_a_function_is_found_where_its_code_begins(source, first, named):
    node = ast.parse(source).body[0]
    assert (walks.first_line(node), walks.parameters(node)) == (first, named)


def count(lines: int) -> walks.Count:
    some = {"files": ["a.py"], "lines": lines, "functions": ["a.py:f"]}
    return {
        "backward": some | {"hops": ["a.py:f"], "step_lines": lines, "with_forward": some},
        "accuracy": some | {"entered": some},
        "views": some,
        "core": some,
        "loose": [],
        "rooms": [],
        "lines": lines,
        "modules": 1,
        "longest_file": ["a.py", lines],
        "longest_function": ["a.py:f", lines],
        "many_parameters": [],
        "readme": lines,
    }


def test_the_table_is_put_between_the_markers_and_nothing_else_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{walks.MARKERS[0]}\nold\n{walks.MARKERS[1]}\nafter\n")
    text = walks.table({"abc": count(1234), "now": count(5)})
    for _ in range(2):
        walks.update(page, text)
    assert page.read_text() == f"before\n{walks.MARKERS[0]}\n{text}\n{walks.MARKERS[1]}\nafter\n"
    assert text.splitlines()[0] == "| walk | abc | now |"
    assert "| README | 1234 lines | 5 lines |" in text
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="no lines"):
        walks.update(page, text)


# --- the page ---------------------------------------------------------------------------------------------------------


def shown_rooms() -> list[str]:
    """Modules beside the rooms and rooms, as the page's first drawing lists them."""
    return [name.rstrip("/").removesuffix(".py") for name in re.findall(r"^  (\w+(?:/|\.py))", TREE, re.MULTILINE)]


def test_the_page_shows_every_room_from_the_bottom_up():
    shown = shown_rooms()
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {room for room in there if not room.startswith("__")} <= set(shown)
    assert [RANK[room] for room in shown] == sorted(RANK[room] for room in shown)


def test_every_file_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+(?:\.(?:py|md|txt)|/))`", PAGE.split("## Walks")[0]))
    assert len(named) > 20
    assert [name for name in sorted(named) if not ((PACKAGE / name).exists() or (ROOT / name).exists())] == []


def test_the_page_fits_a_terminal_and_holds_the_table():
    assert max(len(line) for block in PAGE.split("```")[1::2] for line in block.splitlines()) <= 80
    table = PAGE.split(walks.MARKERS[0])[1].split(walks.MARKERS[1])[0].strip().splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in table[2:]] == list(walks.rows(count(1)))
    assert table[0] == f"| walk | {walks.BEFORE} | {walks.NOW} |"
