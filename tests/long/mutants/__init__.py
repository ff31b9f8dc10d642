"""The mutants: small, meaningful mistakes in the core that the tests must notice. They are tried before a release.

    python -m tests.long.mutants [MODULE ...]

Each is tried on a copy of src/, with the tests that must notice it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the module. `equal` says why the mutant means the same, if it does."""

    old: str
    new: str
    equal: str = ""


@dataclass(frozen=True)
class Group:
    """Mutants of one module (a path below src/supancl) and the tests, arguments of pytest, that must kill them."""

    module: str
    tests: tuple[str, ...]
    mutants: tuple[Mutant, ...]
