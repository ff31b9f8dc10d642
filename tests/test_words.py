"""The words of the code: names that were hard to read stay away, frequent ones are common or in the glossary."""

from __future__ import annotations

import argparse
import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/supancl"

# names of version 0.1.0 that a reader had to translate
RETIRED = """
    spread compared objective tried remembered accepted look Look micros Part Whole share settled stays _means arrange
    plain judge Subject subject Shelf sidecars parts dividing many kept aside sound told unsaid once each alike apart
    is_told doubts at first_bad found asked wanted mine counted known chosen drawn taken
"""

# they are part of a format or of a public signature: a recipe's field, keys of results, an argument, pathlib
STILL_ALLOWED = {
    "share": ("data/views/specs.py", "recipes/toy.py", "probes/linear.py"),  # of Masks; of linear_probe
    "found": ("data/sources/benchmarks.py", "cli/data.py"),  # keys of `supancl data check --json`
    "wanted": ("data/sources/benchmarks.py", "cli/data.py"),
    "tried": ("probes/", "evaluate/finetune.py"),  # key of results
    "parts": ("data/sources/folder.py",),  # of a path
}

# words that PyTorch, NumPy, scikit-learn and Python programmers use
FIELD = """
    accuracy action arg args arguments array arrays bad base batch body bool box boxes branches cache cat channels
    checkpoint child choices class classes column columns command config console content count counts default detector
    device digits dim dtype element entries entry epoch epochs error errors evaluation features field fields file files
    first flag folder frozen function functions generator group groups height help i image images index indices input
    inputs item items iterations k key keys kind label labels layer layers layout length line lines location loss lr
    matrix mean metric missing mode model module n name names new norm note number numbers old optimizer option options
    order out outcome output parameters params parent parser path paths pixels plural position positions prefix progress
    rate reason requested result results root row rows sample samples scale score scores section seed seeds selected
    selection sequence settings shape short side size sizes start state std step steps strict stride suffix sum summary
    table tables terminal test text time title tokens total train trainer training transform type value values version
    w weight weights width word words x y
"""

IRREGULAR = """
    made kept told drawn taken given seen shown found built begun written known chosen bound held
"""
NAME_FIELDS = frozenset(("name", "id", "attr", "arg"))
NO_PARTICIPLES = {"embed", "need", "seed", "feed", "speed"}


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """Every node of every file of the package; the contexts of names, which say nothing here, are left out."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        path: [node for node in ast.walk(ast.parse(text)) if node._fields and not isinstance(node, ast.Constant)]
        for path, text in texts.items()
    }


def names_in(nodes_of_file: list[ast.AST]) -> Iterator[str]:
    """Every name that is defined or used."""
    for node in nodes_of_file:
        for field in NAME_FIELDS.intersection(node._fields):
            name = getattr(node, field)
            if isinstance(name, str):
                yield name


def glossary() -> set[str]:
    """Words in the first column of the glossary in docs/architecture.md, with their plurals."""
    page = (ROOT / "docs/architecture.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    words = {word for cell in cells for word in re.findall(r"[a-z]+", cell.lower())}
    return words | {f"{word}s" for word in words}


def imported_names() -> set[str]:
    """Names that come from other packages and are not ours to choose."""
    names = {"self", "cls"}
    for nodes_of_file in nodes().values():
        for node in nodes_of_file:
            if isinstance(node, ast.Import) or (
                isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("supancl")
            ):
                names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    for owner in (
        builtins,
        str,
        list,
        dict,
        set,
        Path,
        argparse.ArgumentParser,
        torch,
        torch.Tensor,
        torch.nn.Module,
        np,
    ):
        names |= set(dir(owner))
    return names


def words_of(name: str) -> set[str]:
    """The words of a name: `BadInput` and `bad_input` are bad and input."""
    return set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


def test_retired_names_stay_away() -> None:
    again = [
        f"{path}: {name}"
        for path, nodes_of_file in nodes().items()
        for name in sorted(set(names_in(nodes_of_file)) & set(RETIRED.split()))
        if not path.startswith(STILL_ALLOWED.get(name, ("-",)))
    ]
    assert not again


def test_the_hundred_most_frequent_names_are_common_words_or_in_the_glossary() -> None:
    words, foreign = {*FIELD.split(), *glossary()}, imported_names()
    counts = Counter(name for file in nodes().values() for name in names_in(file) if name not in foreign)
    assert [name for name, _ in counts.most_common(100) if not words_of(name) <= words] == []


def test_what_changes_something_is_named_by_a_verb() -> None:
    """A participle may name a function that returns a changed copy, as `sorted` does, and nothing else."""
    wrong = [
        f"{path}:{node.lineno} {node.name}"
        for path, nodes_of_file in nodes().items()
        for node in nodes_of_file
        if isinstance(node, ast.FunctionDef)
        and _is_participle(node.name.strip("_").split("_")[0])
        and _has_effect(node)
    ]
    assert not wrong


def _is_participle(word: str) -> bool:
    return word in IRREGULAR.split() or (word.endswith("ed") and word not in NO_PARTICIPLES)


def _has_effect(node: ast.FunctionDef) -> bool:
    """Whether a function returns nothing, or is a context manager: both are for their effect."""
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    return returns == "None" or any("contextmanager" in ast.unparse(decorator) for decorator in node.decorator_list)
