"""Try the mutants of all modules, or of those that are named; exits with 1 if one survives or does not fit the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tests.long.mutants import Group

ROOT = Path(__file__).resolve().parents[3]
LISTS = "losses labels semi pools branches schedules probes order views checkpoint"
SECONDS = 300  # that the tests of one mutant may take; a mutant that loops is killed too


def is_killed(group: Group, text: str) -> bool:
    """Whether the tests fail, or do not end, where the module has this text."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True)
        Path(folder, "supancl", group.module).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *group.tests]
        environment = {**os.environ, "PYTHONPATH": folder}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return done.returncode > 0


def main(names: list[str]) -> int:
    groups = [group for each in LISTS.split() for group in import_module(f"tests.long.mutants.{each}").GROUPS]
    wrong = 0
    for group in groups:
        if names and not any(name in group.module for name in names):
            continue
        text = (ROOT / "src" / "supancl" / group.module).read_text(encoding="utf-8")
        if is_killed(group, text):
            print(f"{group.module}: its tests fail without a mutant")
            wrong += 1
            continue
        for mutant in group.mutants:
            problem = "does not occur once" if text.count(mutant.old) != 1 else ""
            if not problem and is_killed(group, text.replace(mutant.old, mutant.new)) == bool(mutant.equal):
                problem = f"marked as equal, but killed ({mutant.equal})" if mutant.equal else "survived"
            if problem:
                print(f"{group.module}: {problem}: {mutant.old!r} -> {mutant.new!r}", flush=True)
                wrong += 1
    print(f"mutants to look at: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
