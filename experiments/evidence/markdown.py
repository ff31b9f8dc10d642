"""Tables and links as Markdown has them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows]) + "\n"


def slug(title: str) -> str:
    """What a heading is called in a link.

    >>> slug("Is the best alpha inside (0, 1)?")
    'is-the-best-alpha-inside-0-1'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
