"""Cells of a table: paths of images, texts that a spreadsheet must not compute."""

from __future__ import annotations

import os
from functools import lru_cache

from supancl.errors import make_visible

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


def absolute_path(path: str) -> str:
    """The path of an image from the root, which is the same wherever a table of images lies."""
    working_folder = "" if os.path.isabs(path) else os.getcwd()
    return os.path.join(_real_folder(os.path.join(working_folder, os.path.dirname(path))), os.path.basename(path))


@lru_cache(maxsize=1024)
def _real_folder(folder: str) -> str:
    """The folder without links. It is remembered: a folder has many images."""
    return os.path.realpath(folder)


def path_in_table(path: str, folder: str) -> str:
    """The path of an image: relative if it is below the table's folder, which ends in a slash; else absolute.

    >>> path_in_table("/data/photos/=1.png", "/data/photos/"), path_in_table("/data/cat.png", "/data/photos/")
    ('./=1.png', '/data/cat.png')
    """
    absolute = absolute_path(path)
    if not absolute.startswith(folder):
        return absolute
    relative = absolute.removeprefix(folder)
    return f"./{relative}" if is_formula(relative) or relative != relative.lstrip() else relative


def make_writable(text: str) -> str:
    """The text without what a table in UTF-8 cannot hold: line ends, and bytes of other encodings."""
    is_text = "\n" not in text and "\r" not in text and "\0" not in text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        is_text = False
    return text if is_text else make_visible(text)
