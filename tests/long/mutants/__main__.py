"""Try the mutants of all modules, or of those that are named; exits with 1 if one survives or does not fit the code."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

from tests.long.mutants import Group

ROOT = Path(__file__).resolve().parents[3]
LISTS = "losses labels semi pools branches schedules probes order views checkpoint"
LIBRARIES = "torch torchvision timm numpy scipy.optimize sklearn.linear_model matplotlib.figure rich.table"
SECONDS = 300  # that the tests of one mutant may take; a mutant that loops is killed too


def is_killed(group: Group, text: str) -> bool:
    """Whether the tests fail, or do not end, where the module has this text."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True)
        Path(folder, "supancl", group.module).write_text(text, encoding="utf-8")
        child = os.fork()  # the libraries are imported already, and our package is imported anew
        if child == 0:
            signal.alarm(SECONDS)
            os.environ["PYTHONPATH"] = sys.path[0] = folder
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some are imported already: pytest would complain
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *group.tests])))
        return os.waitpid(child, 0)[1] != 0


def main(names: list[str]) -> int:
    groups = [group for each in LISTS.split() for group in import_module(f"tests.long.mutants.{each}").GROUPS]
    wrong = tried = 0
    for group in groups:
        if names and not any(name in group.module for name in names):
            continue
        text = (ROOT / "src" / "supancl" / group.module).read_text(encoding="utf-8")
        if is_killed(group, text):
            print(f"{group.module}: its tests fail without a mutant")
            wrong += 1
            continue
        for mutant in group.mutants:
            tried += 1
            problem = "does not occur once" if text.count(mutant.old) != 1 else ""
            if not problem and is_killed(group, text.replace(mutant.old, mutant.new)) == bool(mutant.equal):
                problem = f"marked as equal, but killed ({mutant.equal})" if mutant.equal else "survived"
            if problem:
                print(f"{group.module}: {problem}: {mutant.old!r} -> {mutant.new!r}", flush=True)
                wrong += 1
    print(f"mutants tried: {tried}, to look at: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))  # place of the mutant's package
    for library in LIBRARIES.split():
        import_module(library)
    sys.exit(main(sys.argv[1:]))
