"""The template of every HTML page: one self-contained file."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from supancl.errors import make_visible

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .3rem .8rem; text-align: right; }
th { border-bottom: 2px solid #444; } tr:nth-child(even) td { background: #f4f4f4; }
.answer { font-size: 1.15rem; padding: .8rem 1rem; background: #eef4fb; border-left: 4px solid #4477aa; }
img { max-width: 100%; } .small { color: #666; font-size: .9rem; }
"""


def html_page(title: str, body: str, more_style: str = "") -> str:
    """A page with this title; `body` is HTML already, in which only control characters of names are left to escape."""
    title, body = make_visible(title), make_visible(body, keep="\n")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{STYLE}{more_style}</style></head><body>
{body}
</body></html>
"""


def inline_image(path: Path) -> str:
    """A data URL with the content of a PNG file."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
