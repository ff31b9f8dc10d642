"""The numbers of RESULTS.md and docs/results: golden/results.csv.

`python -m tests.test_golden_results [--accept]` is for `make results`.
"""

import csv
import re
import sys
from pathlib import Path

from experiments.evidence.numbers import DECIMALS, RESULTS, Number, numbers

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "results.csv"
COLUMNS = ("study", "row", "column", "value", "low", "high", "n", "source")
NOT_MEASURED = ("paper", "solo-learn", "alpha", "lr", "learning rate", "weight decay")  # columns of the page's tables
FLOAT = r"[-+]?\d+\.\d+"


def read_golden() -> list[Number]:
    return [tuple(row) for row in csv.reader(GOLDEN.read_text().splitlines())][1:]


def changes(known: list[Number], found: list[Number]) -> list[str]:
    """The known rows that are lost, or have another value, interval (but for rounding), n or source."""
    now = {row[:3]: row for row in found}

    def is_same(row: Number, other: Number) -> bool:
        pairs = zip(row[3:6], other[3:6], strict=False)
        near = (a == b or ("" not in (a, b) and abs(float(a) - float(b)) < 2.5 * 10**-DECIMALS) for a, b in pairs)
        return row[6:] == other[6:] and all(near)

    return [f"{row} is now {now.get(row[:3])}" for row in known if not is_same(row, now.get(row[:3], ()))]


def is_rounded(text: str, value: float) -> bool:
    return abs(float(text) - value) <= 0.5 * 10.0 ** -len(text.partition(".")[2]) + 10**-DECIMALS


def test_every_golden_row_is_reproduced_and_has_what_the_page_shows() -> None:
    golden, pages = read_golden(), [ROOT / "RESULTS.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]
    page = "\n\n".join(path.read_text(encoding="utf-8") for path in pages)
    assert changes(golden, list(numbers(RESULTS))) == []
    spans = [tuple(map(float, row[3:6])) for row in golden if row[4]]
    known = {1: [(float(row[3]),) for row in golden], 2: [(v, (h - low) / 2) for v, low, h in spans], 3: spans}
    shown = {*re.findall(rf"({FLOAT}) \[({FLOAT}), ({FLOAT})\]", page), *re.findall(rf"({FLOAT}) ± ({FLOAT})", page)}
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        titles, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        cells = [
            (cell, title) for row in rows if row[0] != "paper" for cell, title in zip(row[1:], titles[1:], strict=True)
        ]
        shown |= {(cell,) for cell, title in cells if re.fullmatch(FLOAT, cell) and not title.startswith(NOT_MEASURED)}
    assert [texts for texts in shown if not any(all(map(is_rounded, texts, row)) for row in known[len(texts)])] == []


if __name__ == "__main__":
    found, known = list(numbers(RESULTS)), [] if "--accept" in sys.argv[1:] else read_golden()
    if lost := changes(known, found):
        sys.exit("\n".join([*lost[:10], f"{GOLDEN}: {len(lost)} rows are lost or changed; --accept writes it anew"]))
    added = [row for row in found if row[:3] not in {row[:3] for row in known}]
    with GOLDEN.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *known, *added])
