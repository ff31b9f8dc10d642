"""The public names are a decision, so they are listed: a dozen that help() shows, and all that can be imported."""

import ast
import pydoc
from pathlib import Path

import supancl

LISTED = Path(__file__).with_name("public_api.txt").read_text().split()
FIRST = """
    BadInput ImageEncoder embed from_arrays knn_accuracy linear_accuracy load load_encoder open_data open_encoder
    pretrain recipe
"""


def typed_names() -> set[str]:
    """The names that type checkers and editors see: imports of the form `X as X`."""
    tree = ast.parse(Path(supancl.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names if alias.asname == alias.name}


def test_the_public_names_are_the_committed_list() -> None:
    assert sorted(typed_names() - {"__version__"}) == sorted(LISTED)


def test_every_public_name_exists_and_is_documented() -> None:
    for name in LISTED:
        assert getattr(supancl, name).__doc__, name
        assert name in dir(supancl)


def test_a_dozen_names_come_first() -> None:
    assert sorted(supancl.__all__) == sorted(FIRST.split())
    assert set(FIRST.split()) <= set(LISTED)


def test_help_begins_with_an_example_of_each_and_is_short() -> None:
    """The examples themselves run as doctests."""
    shown = pydoc.plain(pydoc.render_doc(supancl)).splitlines()
    begin = "\n".join(shown[: shown.index("PACKAGE CONTENTS")])
    for name in FIRST.split():
        assert f"supancl.{name}" in begin or f"errors.{name}" in begin, name
    assert len(shown) < 1000
    examples = [line for line in begin.splitlines() if ">>>" in line]
    assert len(examples) >= len(FIRST.split())
