"""Tables and links as Markdown has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from supancl.reports.tables import Table, to_markdown


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return to_markdown(Table(columns, rows))


def slug(title: str) -> str:
    """What a heading is called in a link.

    >>> slug("Is the best alpha inside (0, 1)?")
    'is-the-best-alpha-inside-0-1'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
