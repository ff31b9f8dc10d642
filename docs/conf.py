"""The site: `make docs` writes it to docs/_build, with search and without anything from elsewhere.

Pages are the Markdown files of this folder, README's neighbours among them; the reference is generated from the code.
"""

from __future__ import annotations

import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import supancl
from supancl.cli.commands import GROUPS
from supancl.cli.layer import arguments_of, parameter_texts
from supancl.config import flattened
from supancl.recipes import RECIPES, recipe

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGES = ("RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md")  # shown on the site, kept beside README.md

project, author, release = "supancl", "the supancl authors", supancl.__version__
extensions = ["myst_parser"]
html_theme, html_title = "furo", f"supancl {release}"
html_theme_options = {"top_of_page_buttons": []}
exclude_patterns = ["_build", "log.md"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# links to files of the repository that are no pages of the site, and to a folder of several languages of code
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "toc.not_included"]


def setup(app: Any) -> None:
    app.connect("builder-inited", write_pages)


def write_pages(_: Any) -> None:
    """Copy the pages beside README.md, with their links turned, and write the reference."""
    shutil.rmtree(HERE / "reference", ignore_errors=True)
    (HERE / "reference").mkdir()
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        (HERE / "reference" / name).write_text(text.replace("](docs/", "](../"), encoding="utf-8")
    for name, text in (("commands", commands()), ("settings", settings()), ("python", api())):
        (HERE / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


def commands() -> str:
    """Every command with its arguments and examples, from signatures and docstrings."""
    parts = ["# Commands\n"]
    for title, group in GROUPS.items():
        parts.append(f"## {title.capitalize()}\n")
        for name, command in group.items():
            parts += describe(name, command, {})
    return "\n".join(parts)


def describe(name: str, command: Any, shared: dict[str, str]) -> list[str]:
    if isinstance(command, dict):
        texts = parameter_texts(command.get(""))
        return [
            line for word, function in command.items() for line in describe(f"{name} {word}".strip(), function, texts)
        ]
    text = inspect.getdoc(command) or ""
    rows = []
    for argument in arguments_of(command, shared):
        flag = argument.name.upper() if argument.is_positional else f"--{argument.name.replace('_', '-')}"
        rows.append(f"| `{flag}` | {argument.text} |".replace("[|", "[\\|"))
    examples = [line.strip("$ ") for line in text.splitlines() if line.strip().startswith("$ supancl")]
    lead = text.split("\nParameters\n")[0].split("\nExamples\n")[0].strip()
    table = ["| Argument | |", "|---|---|", *rows, ""] if rows else []
    return [f"### {name}\n", lead, "", "```bash", *examples, "```", "", *table]


def settings() -> str:
    """Every field of a recipe with its value in two recipes and the source of it."""
    parts = ["# Settings\n", "`--set FIELD=VALUE` changes one; `supancl recipes NAME` shows all of a recipe.\n"]
    for name in ("imagenet100.supsiam", "cifar100.supsiam"):
        shown = recipe(name)
        parts += [f"## {name}\n", "| Field | Value | Source |", "|---|---|---|"]
        for field, value in flattened(replace(shown, sources={})).items():
            parts.append(f"| `{field}` | `{json.dumps(value)}` | {shown.sources.get(field, 'our choice')} |")
        parts.append("")
    return "\n".join([*parts, "## All recipes\n", ", ".join(f"`{name}`" for name in RECIPES), ""])


def api() -> str:
    """Every public name with its signature and docstring."""
    parts = ["# Python\n"]
    for name in sorted(n for n in dir(supancl) if n[0] != "_"):
        value = getattr(supancl, name)
        if (inspect.isfunction(value) or inspect.isclass(value)) and (text := inspect.getdoc(value)):
            parts += [f"## {name}\n", "```text", text.replace("```", "'''"), "```", ""]
    return "\n".join(parts)
