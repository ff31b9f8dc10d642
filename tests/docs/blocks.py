"""The code blocks of README.md and docs/*.md: which there are, and how they are run. Standard library only.

A block that opens with ```bash or ```python is run. One that cannot be run here (a GPU, a download, a placeholder)
says so where it opens: ```bash no-run. What a terminal shows is ```console or a block without a language.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
RUN, NOT_RUN = ("bash", "python"), ("bash no-run", "python no-run")
SHOWN = ("", "text", "console", "{toctree}", "{literalinclude}")
# what sets up an environment: the caller has one already
SETUP = re.compile(r"(\$\s+)?(pip install|python3? -m (venv|pip)|git clone|cd supancl$|(\.|source) .*activate$)")
# what takes minutes, and what the tests run in its place
SHORTENED = {
    "supancl pretrain --data photos --out runs/photos": "supancl pretrain --data photos --out runs/photos --epochs 1"
}
# runs the Python blocks that standard input brings, one JSON string a line, and writes a zero byte after each
SESSION = """
import json, sys
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "block", "exec"), names)
    print(end="\\0", flush=True)
"""


class Block(NamedTuple):
    page: Path
    line: int
    kind: str  # what stands after the three backticks
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```([^\n`]*)\n(.*?)^ *```[ ]*$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(page, text[: match.start()].count("\n") + 1, match[2].strip(), re.sub(f"(?m)^{match[1]}", "", match[3]))
        for match in found
    ]


def setup_lines(block: Block) -> list[str]:
    """The lines that set up an environment, without comments."""
    return [line.split("  #")[0].strip() for line in block.text.splitlines() if SETUP.match(line.strip())]


class Runner:
    """Runs blocks in one folder, in order. The Python blocks share their names, as the cells of a notebook do."""

    def __init__(self, folder: Path, environment: Mapping[str, str], leave_out: Iterable[str] = ()) -> None:
        self.folder, self.environment, self.leave_out = folder, dict(environment), set(leave_out)
        self.program = "python"
        self.python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> str:
        """Run the block, without lines that install something, and return what it printed."""
        return self.run_python(block) if block.kind == "python" else self.run_bash(block)

    def run_bash(self, block: Block) -> str:
        left_out = {*self.leave_out, *setup_lines(block)}
        lines = [SHORTENED.get(line, line) for line in block.text.splitlines()
                 if line.split("  #")[0].strip() not in left_out]  # fmt: skip
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], cwd=self.folder,
                              env=self.environment, capture_output=True, text=True)  # fmt: skip
        if done.returncode:
            raise AssertionError(f"{block}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def run_python(self, block: Block) -> str:
        if self.python is None:
            pipe = subprocess.PIPE
            self.python = subprocess.Popen([self.program, "-c", SESSION], cwd=self.folder, env=self.environment,
                                           stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        assert self.python.stdin is not None
        assert self.python.stdout is not None
        self.python.stdin.write(json.dumps(block.text) + "\n")
        self.python.stdin.flush()
        shown = ""
        while not shown.endswith("\0"):
            letter = self.python.stdout.read(1)
            if not letter:
                raise AssertionError(f"{block}: Python ended\n{shown[-3000:]}")
            shown += letter
        return shown[:-1]

    def close(self) -> None:
        if self.python is not None:
            self.python.communicate()
            self.python = None


def environment_of(source: Path, **more: str) -> dict[str, str]:
    """This environment's programs first, and the package of `source`, which comes before the installed one."""
    prefix = Path(sys.prefix)
    path = os.pathsep.join([str(prefix / "bin"), os.environ["PATH"]])
    make = {"MAKEFLAGS": "READY=", "VENV": str(prefix)}  # make installs nothing
    return {**os.environ, "PATH": path, "PYTHONPATH": str(source / "src"), **make, **more}


def copy_tree(folder: Path) -> None:
    """The files that git knows or would add, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True)  # fmt: skip
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    if not names:  # a copy without its history, as .ci/run makes it
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
