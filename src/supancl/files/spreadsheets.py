"""Cells that a spreadsheet must not compute, and the kinds of file that features are written to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from supancl.errors import BadInput

FORMULA_STARTS = ("=", "+", "-", "@")


def is_formula(text: str) -> bool:
    """Whether a spreadsheet takes the text for a formula; -0.5 is a number."""
    if not text.lstrip().startswith(FORMULA_STARTS):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def escape_formula(text: str) -> str:
    """The text of a cell of a .csv, with an apostrophe in front if a spreadsheet would compute it.

    >>> escape_formula("=A1"), escape_formula("-0.5"), escape_formula("cat")
    ("'=A1", '-0.5', 'cat')
    """
    return f"'{text}" if is_formula(text) else text


def unescape_formula(text: str) -> str:
    """The text without the apostrophe that `escape_formula` put in front."""
    return text[1:] if text.startswith("'") and is_formula(text[1:]) else text


def check_feature_file(out: Path) -> None:
    """Refuse a file for features whose suffix says no format, or one whose library is missing."""
    suffix = out.suffix.lower()
    if suffix not in (".npz", ".csv", ".parquet"):
        raise BadInput(f"--out {out}: must end in .npz, .csv or .parquet")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise BadInput(f"--out {out}: .parquet needs pyarrow; pip install 'supancl[parquet]', or write .csv or .npz")
