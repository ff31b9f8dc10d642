"""The site: `make docs` writes it to docs/_build. The pages of docs/reference are generated here, from the code."""

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import supancl
from supancl.cli.commands import GROUPS
from supancl.cli.layer import arguments_of, parameter_texts
from supancl.config import Within
from supancl.recipes import RECIPES, recipe

HERE = Path(__file__).parent
PAGES = ("RESULTS", "CONTRIBUTING", "CHANGELOG")  # shown on the site, kept beside README.md

project, author, release = "supancl", "the supancl authors", supancl.__version__
extensions = ["myst_parser"]
html_theme, html_title = "furo", f"supancl {release}"
html_theme_options, html_show_search_summary = {"top_of_page_buttons": []}, False  # the summary needs a server
exclude_patterns = ["_build", "log.md", "figures"]
myst_heading_anchors = 3
# links to files of the repository that are no pages of the site, and to a folder of several languages of code
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "toc.not_included"]


def setup(app):
    """Copy the pages beside README.md, with their links turned, and write the reference."""
    app.connect("source-read", turn_links)
    shutil.rmtree(HERE / "reference", ignore_errors=True)
    (HERE / "reference").mkdir()
    texts = {name: (HERE.parent / f"{name}.md").read_text().replace("](docs/", "](../") for name in PAGES}
    for name, text in {**texts, "commands": commands(), "settings": settings(), "api": api()}.items():
        (HERE / "reference" / f"{name}.md").write_text(text)


def turn_links(_, __, source):
    source[0] = re.sub(rf"]\((\.\./)+({'|'.join(PAGES)})", r"](/reference/\2", source[0])


def leaves(named, prefix="", texts=None):
    """(name, function, texts of shared arguments) of each command, groups opened."""
    for word, each in named.items():
        if isinstance(each, dict):
            yield from leaves(each, f"{prefix}{word} ".lstrip(), parameter_texts(each.get("")))
        else:
            yield f"{prefix}{word}".strip(), each, texts or {}


def commands():
    """Every command with its arguments and examples; arguments of more than three commands once, at the end."""
    rows = {}
    for name, function, texts in (each for named in GROUPS.values() for each in leaves(named)):
        words = [(a.name.upper() if a.is_positional else f"--{a.name}", a.text) for a in arguments_of(function, texts)]
        rows[name] = function, [f"| `{word.replace('_', '-')}` | {text} |" for word, text in words]
    every = [line for _, lines in rows.values() for line in lines]
    head, parts = ["| Argument | |", "|---|---|"], ["# Commands\n"]
    for name, (function, lines) in rows.items():
        text = inspect.getdoc(function) or ""
        examples = [line.strip("$ ") for line in text.splitlines() if line.strip().startswith("$ supancl")]
        own = [line for line in lines if every.count(line) <= 3]
        also = ", ".join(f"`{line.split('`')[1]}`" for line in lines if every.count(line) > 3)
        lead = text.split("\nParameters\n")[0].split("\nExamples\n")[0].strip()
        parts += [f"## {name}\n", lead, "", "```bash", *examples, "```", "", *(head * bool(own)), *own, ""]
        parts += [f"And [common arguments](#common-arguments): {also}.\n"] * bool(also)
    return "\n".join([*parts, "## Common arguments\n", *head, *sorted({x for x in every if every.count(x) > 3}), ""])


def settings():
    one, other = (recipe(f"{name}.supsiam") for name in ("imagenet100", "cifar100"))
    parts = ["# Settings\n\n`--set FIELD=VALUE` changes a field; `supancl recipes NAME` shows a recipe.\n"]
    parts += ["| Field | Range | imagenet100.supsiam | Its source | cifar100.supsiam |\n|---|---|---|---|---|"]
    for name, (value, source) in one.fields().items():
        section = one
        for part in name.split("."):
            hint, section = get_type_hints(type(section), include_extras=True)[part], getattr(section, part)
        one_value, other_value = (json.dumps(each) for each in (value, other.fields().get(name, (None,))[0]))
        limit = ", ".join(dict.fromkeys(limits(hint)))
        parts.append(f"| `{name}` | {limit} | `{one_value}` | {source} | `{other_value}` |")
    return "\n".join([*parts, "\nRecipes: " + ", ".join(f"`{name}`" for name in RECIPES)])


def limits(hint):
    for mark in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        shown = str(mark).replace("must lie in ", "").replace("must be ", "")
        yield from [shown] * ("e+09" not in shown) if isinstance(mark, (str, Within)) else limits(mark)


def api():
    parts, mine = ["# Python API\n"], {each for named in GROUPS.values() for _, each, _ in leaves(named)}
    for name, value in sorted((name, getattr(supancl, name)) for name in dir(supancl) if name[0] != "_"):
        text = inspect.getdoc(value) if inspect.isfunction(value) or inspect.isclass(value) else None
        if text and value not in mine and value.__module__ != "supancl.lazy":
            parts += [f"## {name}\n", f"```text\n{text}\n```" if "\n\n" in text else text, ""]
    return "\n".join(parts)
