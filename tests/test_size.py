"""The ratchet: the totals in size.txt may only fall. Files move between rows freely.

python tests/test_size.py      # write the current figures into the table; it refuses to raise a total
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("size.txt")
CODE = re.compile(r".+\.(pyi?|m?js|ts|css|html?|jinja2?|j2|tmpl)")  # Python, scripts, styles and templates
RESULTS = "experiments/results/"
IGNORED = re.compile(r"(build|dist|runs|\.(?!ci/)[^/]*)/")  # where there is no git to say so

# each package below src/supancl is a room: a new one needs its word here
ROOMS = """
    cli core data detection distributed evaluation files paper probes recipes reports sweeps training use
    runs
"""
# row -> the files in it. The first word is the total that the row belongs to
ROWS = {
    "src top": r"src/supancl/[^/]+\.pyi?",
    **{f"src {room}": rf"src/supancl/{room}/.+\.pyi?" for room in ROOMS.split()},
    "pages": r"src/supancl/.+(?<!\.py)(?<!\.pyi)",  # their scripts, styles and templates
    **{name: rf"{name}/.+" for name in ("tests", "experiments", "examples", "docs")},
    "other": r"conftest\.py|\.ci/.+",
}
COLUMNS = ("lines", "statements", "modules")
EMPTY = (0, 0, 0)
Sizes = dict[str, tuple[int, ...]]


@cache
def files() -> list[str]:
    """Every file of code that git knows or would add; without git, every one that is here."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"))
    else:
        paths = (path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*"))
        names = {name for name in paths if not IGNORED.match(name)}
    return sorted(n for n in names if CODE.fullmatch(n) and not n.startswith(RESULTS) and (ROOT / n).is_file())


def rows_of(name: str) -> list[str]:
    return [row for row, pattern in ROWS.items() if re.fullmatch(pattern, name)]


def statements(node: ast.AST) -> int:
    """The statements inside a node, without imports and docstrings; expressions have none."""
    count = 0
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            is_counted = isinstance(child, ast.stmt) and not is_text
            count += (is_counted and not isinstance(child, (ast.Import, ast.ImportFrom))) + statements(child)
    return count


def measured() -> Sizes:
    """Lines, statements and modules of each row, and of all rows of src."""
    sizes: Sizes = {}
    for name in files():
        text, row = (ROOT / name).read_text(encoding="utf-8"), (rows_of(name) or ["other"])[0]
        size = text.count("\n"), statements(ast.parse(text)) if name.endswith(".py") else 0, 1
        for key in {row, row.split()[0]}:
            sizes[key] = tuple(map(sum, zip(sizes.get(key, EMPTY), size, strict=True)))
    return {row: sizes[row] for row in (*ROWS, "src") if row in sizes}


def listed() -> Sizes:
    lines = [line.rsplit(None, 3) for line in TABLE.read_text().splitlines()[1:]]
    return {row: tuple(int(count.replace(",", "")) for count in counts) for row, *counts in lines}


def compare(now: Sizes, table: Sizes) -> tuple[list[str], list[str]]:
    """Which totals are above the table, and which below; outside src only lines count."""
    above, below = [], []
    for total in sorted({row for row in (*now, *table) if " " not in row}):
        for column, new, old in zip(COLUMNS, now.get(total, EMPTY), table.get(total, EMPTY), strict=True):
            if new != old and (total == "src" or column == "lines"):
                (above if new > old else below).append(f"{total} {column} {new - old:+,}")
    return above, below


def test_every_file_belongs_to_one_row() -> None:
    wrong = [f"{name} is in {rows or 'no row'}" for name in files() if len(rows := rows_of(name)) != 1]
    assert not wrong, f"each file belongs to one row of ROWS: {', '.join(wrong)}"


@pytest.mark.filterwarnings("default")  # a table that can be lowered is no failure
def test_no_total_rises() -> None:
    table = listed()
    assert table["src"] == tuple(map(sum, zip(*(table[row] for row in table if row.startswith("src ")), strict=True)))
    above, below = compare(measured(), table)
    assert not above, f"tests/size.txt allows less, so take as much out elsewhere: {', '.join(above)}"
    if below:
        warnings.warn(f"tests/size.txt can be lowered (python tests/test_size.py): {', '.join(below)}", stacklevel=1)


def main() -> None:
    now = measured()
    if above := compare(now, listed())[0]:
        sys.exit(f"tests/size.txt stays as it is, because these would rise: {', '.join(above)}")
    rows = [("", COLUMNS), *((row, [f"{count:,}" for count in now[row]]) for row in now)]
    TABLE.write_text("".join(f"{row:<16}{a:>10}{b:>12}{c:>10}\n" for row, (a, b, c) in rows))


if __name__ == "__main__":
    main()
