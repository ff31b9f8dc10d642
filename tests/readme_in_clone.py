"""Runs the README's bash and python blocks, and nothing else, in a clean clone: `make readme`.

Without $VENV the README's own lines install the package into the clone's .venv; with $VENV those lines are left out and
that environment is used as it is, with the clone's package before the installed one.
Exit code 0 means that every block ran.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.docs.blocks import ROOT, RUN, Failed, Runner, blocks_of, environment_of

PHOTOS = """
from pathlib import Path
import numpy as np
from PIL import Image
random = np.random.default_rng(0)
for name in ("cat", "dog", "unlabelled"):
    for number in range(20):
        path = Path("photos") / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (48, 48, 3), dtype=np.uint8)).save(path)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leave-out", action="append", default=["make test", "make ci"], metavar="LINE",
                        help="a line that is not run (default: make test, make ci)")  # fmt: skip
    chosen = parser.parse_args()
    ready = os.environ.get("VENV")
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary) / "supancl"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        if ready:
            environment = environment_of(Path(ready).resolve(), clone)
        else:
            foreign = ("MAKE", "MFLAGS", "PYTHONPATH", "VIRTUAL_ENV")
            inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
            path = os.pathsep.join([str(clone / ".venv" / "bin"), os.environ["PATH"]])
            environment = {**inherited, "PATH": path}
        subprocess.run([sys.executable, "-c", PHOTOS], cwd=clone, check=True)
        runner = Runner(clone, environment, chosen.leave_out)
        for block in (block for block in blocks_of(clone / "README.md") if block.kind in RUN):
            began = time.monotonic()
            try:
                runner.run(block, setup=not ready)
            except Failed as failure:
                print(failure, file=sys.stderr)
                return 1
            print(f"{block} ({block.kind}): {time.monotonic() - began:.0f} s", flush=True)
        runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
