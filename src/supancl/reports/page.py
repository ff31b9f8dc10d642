"""The one shell of every HTML page: verdicts, sections, tables, charts and links, in a file that needs no network."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from supancl.errors import make_visible
from supancl.files import Output, jsonable, open_regular, write_text
from supancl.version import __version__

if TYPE_CHECKING:
    from supancl.stats import Tone

GENERATOR = '<meta name="generator" content="supancl">'
# nothing is fetched, whatever a name in the data contains; blob: is for files that the reader saves
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
# the pages of a run folder, which link to one another
PAGES = {"Report": "report.html", "Map": "map.html", "Audit": "audit/audit.html", "Comparison": "../comparison.html"}
NAV = re.compile(r'<nav id="pages">.*?</nav>', re.DOTALL)


class Banner(NamedTuple):
    """A verdict on top of a page; its colour is green for good, grey for unclear and red for bad."""

    tone: Tone
    headline: str
    detail: str
    state: str = ""


class Section(NamedTuple):
    """A part of a page; `body` is HTML, `note` a plain sentence below the title."""

    title: str
    body: str
    note: str = ""
    is_folded: bool = False

    def to_html(self) -> str:
        if not self.body:
            return ""
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        if self.is_folded:
            return f"<details><summary>{html.escape(self.title)}</summary>{note}{self.body}</details>"
        return f"<section><h2>{html.escape(self.title)}</h2>{note}{self.body}</section>"


def html_page(
    title: str,
    sections: Iterable[Section | str],
    *,
    banners: Iterable[Banner] = (),
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    is_full: bool = False,
) -> str:
    """A page with this title; sections that are strings are HTML already.

    `data` is what `scripts`, names of files in assets/, read from the elements data-NAME. `is_full`: without margins.
    """
    title = make_visible(title)
    parts = [section if isinstance(section, str) else section.to_html() for section in sections]
    top = f'<h1>{html.escape(title)}</h1><nav id="pages"></nav>' + "".join(map(_banner, banners))
    body = make_visible((top if not is_full else "") + "\n".join(filter(None, parts)), keep="\n")
    elements = "\n".join(
        f'<script type="application/json" id="data-{name}">{_json_for_html(value)}</script>'
        for name, value in (data or {}).items()
    )
    code = "\n".join(f"<script>\n{read_asset(name)}</script>" for name in ("theme.js", *scripts))
    foot = "" if is_full else f'<p class="small">supancl {__version__}</p>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title><style>
{read_asset("page.css")}</style></head><body{' class="full"' if is_full else ""}>
<button id="theme" type="button"></button>
{body}{foot}
{elements}
{code}
</body></html>
"""


def _banner(banner: Banner) -> str:
    headline, detail = html.escape(make_visible(banner.headline)), html.escape(make_visible(banner.detail))
    text = f"<strong>{headline}</strong> {detail[:1].upper()}{detail[1:]}"
    return f'<p class="verdict {banner.tone}" data-state="{banner.state}">{text}</p>'


# --- places and links -------------------------------------------------------------------------------------------------


def write_page(path: Path, page: str) -> None:
    """Write a page, and in each page of the same run the links to the others."""
    write_text(path, page)
    folder = path.parents[1] if path.name == Path(PAGES["Audit"]).name else path.parent
    places = {name: folder / place for name, place in PAGES.items()}
    if path not in places.values() or not (folder / "recipe.json").is_file():
        return
    present = {name: place for name, place in places.items() if _is_our_page(place)}
    for here in present.values():
        if here == places["Comparison"]:
            continue  # it has links to its runs in its table
        links = [
            f"<b>{name}</b>" if place == here else f'<a href="{os.path.relpath(place, here.parent)}">{name}</a>'
            for name, place in present.items()
        ]
        text = here.read_text(encoding="utf-8")
        linked = NAV.sub(f'<nav id="pages">{"".join(links) if len(links) > 1 else ""}</nav>', text, count=1)
        if linked != text:
            write_text(here, linked)


def _is_our_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return GENERATOR.encode() in file.read(1000)


def page_output(path: Path) -> Output:
    """The place of a page: an earlier page of supancl's may be replaced."""
    return Output(path, (".html", ".htm"), replaces=_is_our_page)


def picture_output(path: Path, setting: str = "out") -> Output:
    """The place of a picture: one that matplotlib drew may be replaced, a photograph may not."""

    def is_drawn(path: Path) -> bool:
        if not path.is_file():
            return False
        with open_regular(path) as file:
            return b"matplotlib" in file.read().lower()

    return Output(path, (".png", ".svg", ".pdf"), setting, is_drawn)


# --- pieces of HTML ---------------------------------------------------------------------------------------------------


def charts(names: Iterable[str]) -> str:
    """A figure for each of these charts of `data["charts"]`, which charts.js draws."""
    figures = "".join(f'<figure class="chart" data-chart="{html.escape(name)}"></figure>' for name in names)
    return f'<div class="charts">{figures}</div>' if figures else ""


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A table of names with a bar and a text each; the longest bar fills its column."""
    most = max((value for _, value, _ in rows), default=0) or 1
    lines = "".join(
        f'<tr><td class="word long">{wrappable(name)}</td><td>{html.escape(text)}</td>'
        f'<td class="bars"><div class="bar" style="width: {100 * value / most:.1f}%"></div></td></tr>'
        for name, value, text in rows
    )
    return f'<table class="histogram"><tbody>{lines}</tbody></table>' if lines else ""


def pictures(tiles: Iterable[tuple[bytes, str]], columns: int = 0) -> str:
    """WebP pictures with a text below each, in `columns` of equal width."""
    cells = "".join(
        f'<figure><img alt="{html.escape(text)}" src="{data_url(tile)}"><figcaption>{wrappable(text)}</figcaption>'
        "</figure>"
        for tile, text in tiles
    )
    style = f' style="--columns: {columns}"' if columns else ""
    return f'<div class="pictures{" views" if columns else ""}"{style}>{cells}</div>' if cells else ""


def beside(*blocks: str) -> str:
    """Blocks in columns, where the window is wide enough."""
    return f'<div class="beside">{"".join(f"<div>{block}</div>" for block in blocks if block)}</div>'


@lru_cache
def read_asset(name: str) -> str:
    return resources.files("supancl.reports").joinpath("assets", name).read_text(encoding="utf-8")


def wrappable(text: str) -> str:
    """A name as HTML that may wrap after underscores: `english_cocker_spaniel`."""
    return html.escape(text).replace("_", "_<wbr>")


def data_url(content: bytes, kind: str = "image/webp") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def short_source(source: str) -> str:
    """Sources for a heading: a run knows where its files lie, and a page that is mailed should not begin with that.

    >>> short_source("/home/ann/photos + labels.csv")
    'photos + labels.csv'
    """
    return " + ".join(Path(part).name or part if Path(part).is_absolute() else part for part in source.split(" + "))


def _json_for_html(value: Any) -> str:
    """JSON in which nothing ends the script element, and control characters of names are visible."""
    return json.dumps(_visible(jsonable(value)), separators=(",", ":")).replace("<", "\\u003c")


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, Mapping):
        return {make_visible(str(key)): _visible(item) for key, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, (list, tuple)) else value
