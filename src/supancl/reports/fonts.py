"""Fonts for names in pictures: DejaVu Sans, and an installed font for letters that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path
from PIL import ImageDraw, ImageFont

from supancl.errors import make_visible

NO_FONTS = ("Last Resort", "LastResort", "Noto Color Emoji", "Apple Color Emoji")  # boxes, and bitmaps of one size


class Font(NamedTuple):
    """A font by its family, and its file."""

    family: str
    file: str


DEJAVU = Font("DejaVu Sans", str(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf")))


@cache
def characters_of(file: str) -> frozenset[int]:
    """The characters that a font has; none if its file cannot be read."""
    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


@cache
def font_of(character: str) -> Font | None:
    """DejaVu Sans, or else the first installed font that has the character; None if none has it."""
    if ord(character) in characters_of(DEJAVU.file):
        return DEJAVU
    for entry in sorted(
        fontManager.ttflist, key=lambda entry: (entry.style != "normal", entry.weight != 400, entry.fname)
    ):
        if not entry.name.startswith(NO_FONTS) and ord(character) in characters_of(entry.fname):
            return Font(entry.name, entry.fname)
    return None


def make_drawable(text: str) -> str:
    """The text with letters that no installed font has as escapes, because their boxes would all look the same.

    >>> make_drawable("Ångström " + chr(0x10FFFD))
    'Ångström \\\\U0010fffd'
    """
    return "".join(
        character if font_of(character) else character.encode("unicode_escape").decode()
        for character in make_visible(text)
    )


def has_every_letter(text: str) -> bool:
    """Whether installed fonts have all letters of a name."""
    return all(font_of(character) for character in make_visible(text))


def families(texts: Iterable[str]) -> list[str]:
    """The families that matplotlib needs for these texts, in the order in which it should look for a letter."""
    fonts = {font_of(character) for text in texts for character in make_visible(text)} - {None, DEJAVU}
    return [DEJAVU.family, *sorted(font.family for font in fonts if font is not None)]


def text_width(text: str, size: float) -> float:
    """The width of a line in points, as matplotlib draws it."""
    properties = FontProperties(family=families([text]), size=size)
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


class Pen:
    """Draws lines of text on a PIL image, each letter in a font that has it."""

    def __init__(self, draw: ImageDraw.ImageDraw, size: int) -> None:
        self.draw, self.size = draw, size
        self.fonts: dict[str, ImageFont.FreeTypeFont] = {}

    def width(self, text: str) -> float:
        return sum(self.draw.textlength(piece, font=font) for piece, font in self._pieces(text))

    def write(self, middle: float, baseline: float, text: str, fill: str) -> None:
        """Write a line that is centred at `middle`."""
        left = middle - self.width(text) / 2
        for piece, font in self._pieces(text):
            self.draw.text((left, baseline), piece, fill=fill, font=font, anchor="ls")
            left += self.draw.textlength(piece, font=font)

    def _pieces(self, text: str) -> list[tuple[str, ImageFont.FreeTypeFont]]:
        """The text in pieces of one font each."""
        pieces: list[tuple[str, str]] = []
        for character in text:
            file = (font_of(character) or DEJAVU).file
            if pieces and pieces[-1][1] == file:
                pieces[-1] = (pieces[-1][0] + character, file)
            else:
                pieces.append((character, file))
        return [(piece, self._open(file)) for piece, file in pieces]

    def _open(self, file: str) -> ImageFont.FreeTypeFont:
        if file not in self.fonts:
            self.fonts[file] = ImageFont.truetype(file, self.size)
        return self.fonts[file]
