"""A room may look down, never up; what starts with an underscore stays in its room. A new room needs a line below."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import supancl

ROOT = Path(supancl.__file__).parent

# from the bottom up: a room imports rooms of earlier lines only, modules beside the rooms count as rooms
ROOMS = (
    {"errors", "lazy", "version"},
    {"config", "stats", "reporter"},
    {"files"},
    {"distributed"},
    {"data"},
    {"core"},
    {"recipes"},
    {"runs"},
    {"loggers"},
    {"probes"},
    {"training"},
    {"evaluation"},
    {"detection"},
    {"reports"},
    {"use"},
    {"sweeps"},
    {"paper"},
    {"cli"},
    {""},  # the package itself, with its public names
    {"__main__"},
)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
# beyond the order: a probe is a function of features, however the encoder was trained
NEVER = {
    "probes": {"recipes", "runs"},
    "core": {"data"},  # what the paper defines works on tensors
}
# the exceptions: an encoder knows how an image becomes its input; methods of a run are the public functions
ALLOWED = {("supancl.core.encoders", "data"), ("supancl.training.run", "")}
# what splits hold and losses read: it stands below both, and imports nothing but errors
BELOW_DATA = {"supancl.core.labels"}
# what may still look up until its room is in order
NOT_YET: set[tuple[str, str]] = set()


def room_of(module: str) -> str:
    """supancl.data.views.specs -> data."""
    return [*module.split("."), ""][1]


def module_of(path: Path) -> str:
    parts = ("supancl", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, module: str, is_package: bool) -> set[tuple[str, str]]:
    """(module, name) of every import, at any depth: in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            for alias in node.names:
                is_room = base == "supancl" and alias.name in RANK
                found.add((f"supancl.{alias.name}", "") if is_room else (base, alias.name))
    return found


FILES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}
IMPORTS = {
    module: imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    for module, path in FILES.items()
}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def faults(module: str, imports: set[tuple[str, str]]) -> list[str]:
    """What is wrong with these imports of this module."""
    room, found = "files" if module in BELOW_DATA else room_of(module), []
    for other, name in sorted(imports):
        if other.split(".")[0] != "supancl" or (target := room_of(other)) == room:
            continue  # inside a room the order is its own affair
        if is_private(other) or is_private(name):
            found.append(f"{module} imports {other}.{name}, which is private to its room")
        if (room, target) in NOT_YET or (room == "data" and other in BELOW_DATA):
            continue
        if target in NEVER.get(room, ()) and (module, target) not in ALLOWED:
            found.append(f"{module} must never import {other}")
        elif RANK[target] >= RANK[room] and (room, target) != ("cli", "") and (module, target) not in ALLOWED:
            found.append(f"{module} imports {other}, which is not below it")
    return found


def test_every_room_has_its_place():
    unplaced = {room_of(module) for module in FILES} - set(RANK)
    assert not unplaced, "give these a line in ROOMS"


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down(module):
    assert faults(module, IMPORTS[module]) == []


@pytest.mark.parametrize("module", ["supancl.config", "supancl.errors", "supancl.reporter"])
def test_the_bottom_rests_on_the_standard_library_alone(module):
    outside = {name.split(".")[0] for name, _ in IMPORTS[module]} - set(sys.stdlib_module_names) - {"supancl"}
    assert outside == set()


@pytest.mark.parametrize("name", ["losses", "pools", "branches", "specs"])
def test_the_words_of_the_paper_rest_on_torch_alone(name):
    outside = {base.split(".")[0] for base, _ in IMPORTS[f"supancl.core.{name}"]}
    assert outside - set(sys.stdlib_module_names) - {"supancl"} <= {"torch"}


@pytest.mark.parametrize("room", ["experiments", "evidence", "benchmarks", "tests", "examples"])
def test_the_package_never_imports_what_lies_beside_it(room):
    assert [module for module, found in IMPORTS.items() if any(base.split(".")[0] == room for base, _ in found)] == []


def test_an_import_upwards_and_a_private_name_are_faults():
    assert len(faults("supancl.core.losses", {("supancl.data", "x")})) == 1
    assert len(faults("supancl.cli.data", {("supancl.data.splits", "_held_out")})) == 1
    assert faults("supancl.paper.theory", {("supancl.core.losses", "x"), ("torch", "")}) == []
