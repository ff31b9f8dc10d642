"""What a mutant is: one piece of a module's text, and what stands there instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the module. `equal` says why the mutant means the same, if it does."""

    old: str
    new: str
    equal: str = ""

    def title(self) -> str:
        """The lines that differ, without those that `old` has for its context."""
        old, new = self.old.splitlines(), self.new.splitlines()
        while old and new and old[0] == new[0]:
            old, new = old[1:], new[1:]
        while old and new and old[-1] == new[-1]:
            old, new = old[:-1], new[:-1]
        return " / ".join(line.strip() for line in old) + "  ->  " + " / ".join(line.strip() for line in new)


@dataclass(frozen=True)
class Group:
    """Mutants of one module (a path below src/supancl) and the tests, arguments of pytest, that must kill them."""

    module: str
    tests: tuple[str, ...]
    mutants: tuple[Mutant, ...]

    def path(self, root: Path) -> Path:
        return root / "src" / "supancl" / self.module

    def mutate(self, root: Path, mutant: Mutant) -> str:
        """The module's text with the mutant in it."""
        return self.path(root).read_text(encoding="utf-8").replace(mutant.old, mutant.new)

    def misfits(self, root: Path) -> list[str]:
        """The mutants whose old text does not occur exactly once, or which change nothing."""
        text, wrong = self.path(root).read_text(encoding="utf-8"), []
        for mutant in self.mutants:
            count = text.count(mutant.old)
            if count != 1:
                wrong.append(f"{self.module}: occurs {count} times, must occur once: {mutant.old!r}")
            elif mutant.old == mutant.new:
                wrong.append(f"{self.module}: changes nothing: {mutant.old!r}")
        return wrong
