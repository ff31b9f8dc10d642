"""The template of every HTML page: one file that opens from disk, needs no network, and follows light or dark."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from supancl.errors import BadInput, make_visible
from supancl.files import jsonable, open_regular

GENERATOR = '<meta name="generator" content="supancl">'
# nothing is fetched, whatever a name in the data contains; blob: is for files that the reader saves
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def short_source(source: str) -> str:
    """Sources for a heading: a run knows where its files lie, and a page that is mailed should not begin with that.

    >>> short_source("/home/ann/photos + labels.csv")
    'photos + labels.csv'
    """
    return " + ".join(Path(part).name or part if Path(part).is_absolute() else part for part in source.split(" + "))


def html_page(
    title: str, body: str, *, data: Mapping[str, Any] | None = None, scripts: Sequence[str] = (), full: bool = False
) -> str:
    """A page with this title; `body` is HTML already, in which only control characters of names are left to escape.

    `data`: what `scripts`, names of files in assets/, read from the elements data-NAME. `full`: without margins.
    """
    title, body = make_visible(title), make_visible(body, keep="\n")
    elements = "\n".join(
        f'<script type="application/json" id="data-{name}">{_json_for_html(value)}</script>'
        for name, value in (data or {}).items()
    )
    code = "\n".join(f"<script>\n{read_asset(name)}</script>" for name in ("theme.js", *scripts))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title><style>
{read_asset("page.css")}</style></head><body{' class="full"' if full else ""}>
<button id="theme" type="button"></button>
{body}
{elements}
{code}
</body></html>
"""


def check_page_place(path: Path) -> None:
    """Refuse to replace a file that is not a page of supancl's."""
    if path.is_file():
        with open_regular(path) as file:
            beginning = file.read(1000)
        if GENERATOR.encode() not in beginning:
            raise BadInput(f"--out {path}: this file is not a page that supancl wrote; name another one")


def check_picture_place(path: Path, flag: str) -> None:
    """Refuse to replace a picture that was not drawn by matplotlib: it may be a photograph."""
    if path.is_file():
        with open_regular(path) as file:
            if b"matplotlib" not in file.read().lower():
                raise BadInput(f"{flag} {path}: this file is not a picture that supancl drew; name another one")


def charts(specs: Mapping[str, Mapping[str, Any]]) -> str:
    """A figure for each chart of `data["charts"]`, which charts.js draws."""
    figures = "".join(f'<figure class="chart" data-chart="{html.escape(name)}"></figure>' for name in specs)
    return f'<div class="charts">{figures}</div>'


@lru_cache
def read_asset(name: str) -> str:
    return resources.files("supancl.reports").joinpath("assets", name).read_text(encoding="utf-8")


def wrappable(text: str) -> str:
    """A name as HTML that may wrap after underscores: `english_cocker_spaniel`."""
    return html.escape(text).replace("_", "_<wbr>")


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _json_for_html(value: Any) -> str:
    """JSON in which nothing ends the script element, and control characters of names are visible."""
    return json.dumps(_visible(jsonable(value)), separators=(",", ":")).replace("<", "\\u003c")


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, Mapping):
        return {make_visible(str(key)): _visible(item) for key, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, (list, tuple)) else value
