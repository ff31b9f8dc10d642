"""Fonts for names in pictures: DejaVu Sans, and for other scripts one of Noto's if it is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path
from PIL import ImageFont

from supancl.errors import make_visible

FAMILIES = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Sans Thai")


@cache
def fonts() -> dict[str, FT2Font]:
    """The installed families, in the order in which a letter is looked for."""
    installed = fontManager.get_font_names()
    return {family: FT2Font(fontManager.findfont(family)) for family in FAMILIES if family in installed}


@cache
def letters_of(family: str) -> frozenset[str]:
    return frozenset(map(chr, fonts()[family].get_charmap()))


def make_drawable(text: str) -> str:
    """The text with letters that none of the fonts has as escapes, because their boxes would all look the same.

    >>> make_drawable("Ångström " + chr(0x10FFFD))
    'Ångström \\\\U0010fffd'
    """
    return "".join(
        letter if any(letter in letters_of(family) for family in fonts()) else letter.encode("unicode_escape").decode()
        for letter in make_visible(text)
    )


def caption_font(text: str, size: int) -> ImageFont.FreeTypeFont:
    """The first font that has all letters of a caption, for PIL, or DejaVu Sans."""
    family = next((family for family in fonts() if letters_of(family).issuperset(text)), FAMILIES[0])
    return ImageFont.truetype(fonts()[family].fname, size)


def text_width(text: str, size: float) -> float:
    """The width of a line in points, as matplotlib draws it."""
    properties = FontProperties(family=list(fonts()), size=size)
    width: float = text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0]
    return width


def shorten(text: str, width: float, measure: Callable[[str], float]) -> str:
    """The text, or as much of its start and end as fits into the width with an ellipsis between them.

    >>> shorten("a long name", 7, len)
    'a l…ame'
    """
    length, shortened = len(text), text
    while measure(shortened) > width + 0.01 and length > 2:  # sums of widths are rounded
        length -= 1
        shortened = f"{text[: (length + 1) // 2]}…{text[len(text) - length // 2 :]}"
    return shortened
